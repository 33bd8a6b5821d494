"""An engine connected to the fake server, and a tokenizer whose ids are the code points of the text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fake_server import Fake

from plugym.engine import Completion, GenerateRequest, Sampling
from plugym.message import Message
from plugym_runners.engines.openai import OpenAIEngine
from plugym_runners.engines.settings import EndpointConfig

FAST: dict[str, Any] = {"backoff": 0.01, "retries": 2, "connect_timeout": 2.0, "read_timeout": 2.0}
HELLO = GenerateRequest(messages=(Message("user", "hi"),), sampling=Sampling(max_tokens=16), seed=2**40 + 5)


class CodePoints:
    """A transformers tokenizer, as far as the renderer looks."""

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **settings: Any) -> str:
        text = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        return text + "[assistant]" * bool(settings["add_generation_prompt"])

    def encode(self, text: str, **settings: Any) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Sequence[int], **settings: Any) -> str:
        return "".join(map(chr, ids))


@asynccontextmanager
async def opened(fake: Fake, loaded: Any = None, **settings: Any) -> AsyncIterator[OpenAIEngine]:
    """An engine that is connected to the fake, which has forgotten the probe."""
    async with fake.serving() as url:
        engine = OpenAIEngine(EndpointConfig(base_url=url, **{**FAST, **settings}))
        if loaded is not None:
            engine.bind(loaded)
        await engine.open()
        fake.bodies.clear()
        engine.counts.clear()
        try:
            yield engine
        finally:
            await engine.close()


def ask(fake: Fake, request: GenerateRequest = HELLO, *, loaded: Any = None, **settings: Any) -> tuple[Completion, Any]:
    """One completion, and the engine's counts."""

    async def go() -> tuple[Completion, Any]:
        async with opened(fake, loaded, **settings) as engine:
            return await engine.generate(request), engine.counts

    return asyncio.run(go())
