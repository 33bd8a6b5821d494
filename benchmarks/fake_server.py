"""A model server without a model: the OpenAI chat API on loopback, with a fixed latency and predictable answers.

`python benchmarks/fake_server.py --latency 0.05 --tool-turns 4` prints its port. A conversation whose first question
is "What is A + B?" gets the sum in a box; with `tools` in the request, calls of the first tool come before it, one per
turn. Token ids and log-probs come in vLLM's fields where they are asked for. Nothing is measured here: the server is a
process of its own, and its CPU time is nobody's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import zlib
from typing import Any

from aiohttp import web

QUESTION = re.compile(r"What is (\d+) \+ (\d+)\?")
LOGPROB = -0.1


class FakeServer:
    """Answers after `latency` seconds; `tool_turns` calls come before the final text."""

    def __init__(self, latency: float, tool_turns: int) -> None:
        self.latency = latency
        self.tool_turns = tool_turns
        self.answered = 0

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/v1/chat/completions", self.chat)
        app.router.add_get("/v1/models", self.models)
        return app

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        await asyncio.sleep(self.latency)
        self.answered += 1
        return web.json_response(self.answer(body))

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The completion of a conversation."""
        prompt = "\n".join(text_of(message) for message in body["messages"])
        found = QUESTION.search(prompt)
        a, b = (int(found[1]), int(found[2])) if found else (0, 0)
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        tools = body.get("tools")
        if tools and turn < self.tool_turns:
            function = {"name": tools[0]["function"]["name"], "arguments": json.dumps({"a": a, "b": b})}
            call = {"id": f"call_{self.answered}", "type": "function", "function": function}
            message, text, finish = {"role": "assistant", "content": None, "tool_calls": [call]}, "call", "tool_calls"
        else:
            text, finish = f"The answer is \\boxed{{{a + b}}}", "stop"
            message = {"role": "assistant", "content": text}
        return self.wrap(body, prompt, message, text, finish)

    def wrap(
        self, body: dict[str, Any], prompt: str, message: dict[str, Any], text: str, finish: str
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
        asked, words = len(prompt.split()), text.split()
        answer: dict[str, Any] = {
            "id": f"chatcmpl-{self.answered}",
            "object": "chat.completion",
            "created": 0,
            "model": body.get("model", "fake"),
            "choices": [choice],
            "usage": {"prompt_tokens": asked, "completion_tokens": len(words), "total_tokens": asked + len(words)},
        }
        if body.get("logprobs"):
            content = [{"token": word, "logprob": LOGPROB, "bytes": None, "top_logprobs": []} for word in words]
            choice["logprobs"] = {"content": content}
        if body.get("return_token_ids"):
            answer["prompt_token_ids"], choice["token_ids"] = token_ids(prompt.split()), token_ids(words)
        return answer


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else " ".join(part.get("text", "") for part in content)


def token_ids(words: list[str]) -> list[int]:
    return [zlib.crc32(word.encode()) % 30_000 for word in words]


async def serve(latency: float, tool_turns: int, port: int) -> None:
    runner = web.AppRunner(FakeServer(latency, tool_turns).app(), access_log=None)
    await runner.setup()
    # Everybody connects in the same instant.
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=4096)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--latency", type=float, default=0.05, help="seconds before each answer")
    options.add_argument("--tool-turns", type=int, default=4, help="turns with a tool call before the answer")
    options.add_argument("--port", type=int, default=0, help="0 takes a free one")
    chosen = options.parse_args()
    asyncio.run(serve(chosen.latency, chosen.tool_turns, chosen.port))


if __name__ == "__main__":
    main()
