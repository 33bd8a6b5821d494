"""An OpenAI-compatible server that does as it is told, and vLLM's control endpoints as vLLM 0.32 answers them.

Run as a program it is the `vllm serve` of the tests: it takes vLLM's arguments and the key from VLLM_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

EOS = 3
Answer = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def encode(text: str) -> list[int]:
    return [ord(c) for c in text]


@dataclass
class Fake:
    """What it has and refuses; `script` answers the next requests in the place of the usual answer."""

    model: str = "m"
    text: str = "fine"
    key: str | None = None
    max_model_len: int | None = 512
    unknown: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Fields it takes and ignores."""
    lists_models: bool = True
    dev_mode: bool = True
    lora: bool = True
    script: deque[Answer] = field(default_factory=deque)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    adapters: dict[str, str] = field(default_factory=dict)
    weights: str = "base"
    cache_resets: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    control: dict[str, Answer] = field(default_factory=dict)
    """Answers of other endpoints, by path, in the place of the usual ones."""

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self.guard])
        app.router.add_get("/health", self.health)
        if self.lists_models:
            app.router.add_get("/v1/models", self.models)
        for path in ("/v1/chat/completions", "/v1/completions"):
            app.router.add_post(path, self.complete)
        if self.lora:
            app.router.add_post("/v1/load_lora_adapter", self.load_lora_adapter)
        if self.dev_mode:
            app.router.add_post("/collective_rpc", self.collective_rpc)
            app.router.add_post("/reset_prefix_cache", self.reset_prefix_cache)
        return app

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The base URL of the running server."""
        runner = web.AppRunner(self.app(), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()

    @web.middleware
    async def guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.headers = dict(request.headers)
        if self.key and request.path.startswith("/v1") and request.headers.get("Authorization") != f"Bearer {self.key}":
            return error(401, f"no such key: {request.headers.get('Authorization')}")
        if request.path in self.control:
            return await self.control[request.path](request, {})
        response: web.StreamResponse = await handler(request)
        return response

    async def health(self, request: web.Request) -> web.Response:
        return web.Response()

    async def models(self, request: web.Request) -> web.Response:
        entry: dict[str, Any] = {"id": self.model, "object": "model"}
        if self.max_model_len is not None:
            entry["max_model_len"] = self.max_model_len
        return web.json_response({"object": "list", "data": [entry]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.script:
            return await self.script.popleft()(request, body)
        for name in self.unknown:
            if name in body:
                return error(400, f"Unknown parameter: '{name}'.")
        if body["model"] not in (self.model, *self.adapters):
            return error(404, f"The model `{body['model']}` does not exist.")
        chat = request.path.endswith("chat/completions")
        if body.get("echo"):
            return web.json_response(self.echo(body))
        return web.json_response(self.answer(body, chat))

    def answer(self, body: dict[str, Any], chat: bool) -> dict[str, Any]:
        text = self.text
        ids = [*encode(text), EOS]
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        cut = ids[:limit]
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop" if len(cut) == len(ids) else "length"}
        text = text[: len(cut)]
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        payload: dict[str, Any] = {"id": "x", "model": body["model"], "choices": [choice]}
        value = -0.5 if self.weights == "base" else -0.25
        asked = body.get("logprobs") is not None and "logprobs" not in self.without
        if asked and chat:
            choice["logprobs"] = {"content": [{"token": "t", "logprob": value} for _ in cut]}
        elif asked:
            choice["logprobs"] = {"token_logprobs": [value for _ in cut]}
        if body.get("return_token_ids") and "return_token_ids" not in self.without:
            choice["token_ids"] = cut
            prompt = encode(json.dumps(body["messages"])) if chat else body["prompt"]
            (payload if chat else choice)["prompt_token_ids"] = prompt
        return payload

    def echo(self, body: dict[str, Any]) -> dict[str, Any]:
        """The log-prob of each token of a prompt is minus a hundredth of it."""
        choices = [
            {"index": i, "text": "", "finish_reason": "length", "logprobs": {"token_logprobs": values}}
            for i, prompt in enumerate(body["prompt"])
            for values in [[None, *(-token / 100 for token in prompt[1:]), -9.0]]
        ]
        return {"choices": choices[::-1]}

    async def load_lora_adapter(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        if not (Path(path) / "adapter_config.json").is_file():
            return error(404, f"Loading lora {name} failed: No adapter found for {path}")
        if name in self.adapters and not body.get("load_inplace"):
            return error(400, f"The lora adapter '{name}' has already been loaded.")
        self.adapters[name] = path
        self.weights = (Path(path) / "adapter_config.json").read_text()
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def collective_rpc(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert body["method"] == "reload_weights"
        self.weights = (Path(body["kwargs"]["weights_path"]) / "config.json").read_text()
        return web.json_response({"results": [None]})

    async def reset_prefix_cache(self, request: web.Request) -> web.Response:
        self.cache_resets += 1
        return web.json_response({"success": True})


def error(status: int, message: str, **headers: str) -> web.Response:
    body = {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}
    return web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


def says(payload: Any, status: int = 200, **headers: str) -> Answer:
    """An answer with this JSON, or with these bytes under the name of JSON."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=data, status=status, content_type="application/json", headers=more)

    return answer


def streams(*pieces: bytes, pause: float = 0.0) -> Answer:
    """Server-sent events, in these pieces."""

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause)
        return response

    return answer


async def hangs(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The connection stays open and nothing comes."""
    await asyncio.sleep(30)
    return web.Response()


async def hangs_up(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The connection is closed before an answer."""
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def hangs_up_inside(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Half of what was promised, then the end."""
    response = web.StreamResponse(headers={"Content-Length": "1000", "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--die", action="store_true")
    parser.add_argument("--never-ready", action="store_true")
    arguments, rest = parser.parse_known_args()
    print("arguments", *rest, flush=True)
    print("environment", *sorted(os.environ), flush=True)
    if arguments.die:
        raise SystemExit("CUDA is out of luck")
    fake = Fake(model=arguments.served_model_name, key=os.environ["VLLM_API_KEY"])
    app = fake.app()
    if arguments.never_ready:
        app = web.Application()
    web.run_app(app, host=arguments.host, port=arguments.port, print=None)


if __name__ == "__main__":
    main()
