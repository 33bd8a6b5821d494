"""Contender of rollout_overhead.py: the same requests with aiohttp and nothing around them, the price of the wire."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
from meter import TOOL_TURNS, main, questions

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


async def play(url: str, tools: bool, episodes: int, concurrency: int) -> int:
    gate = asyncio.Semaphore(concurrency)

    async def ask(session: aiohttp.ClientSession, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": "fake", "messages": messages, **({"tools": [ADD]} if tools else {})}
        async with session.post(f"{url}/chat/completions", json=body) as response:
            message: dict[str, Any] = (await response.json())["choices"][0]["message"]
        return message

    async def episode(session: aiohttp.ClientSession, question: str, answer: str) -> bool:
        async with gate:
            messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
            for _ in range(TOOL_TURNS if tools else 0):
                message = await ask(session, messages)
                (call,) = message["tool_calls"]
                total = sum(json.loads(call["function"]["arguments"]).values())
                messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": str(total)}]
            return f"\\boxed{{{answer}}}" in (await ask(session, messages))["content"]

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        return sum(await asyncio.gather(*(episode(session, *pair) for pair in questions(episodes))))


if __name__ == "__main__":
    main(play)
