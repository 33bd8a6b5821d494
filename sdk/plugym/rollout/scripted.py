"""The `scripted` engine: answers written in advance. It plays oracles, tests and the dry run's one episode.

It works on messages, or on tokens where it is given a tokenizer; then its log-probs are all 0 (it is certain).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from plugym.engine import Capabilities, ChatTokenizer, Completion, Engine, Finish, GenerateRequest, Level

Script = Callable[[GenerateRequest, int], str]


class ScriptedConfig(BaseModel, extra="forbid"):
    """Settings of the scripted engine."""

    lines: list[str] = Field(default_factory=lambda: [""], description="answers by turn; the last one repeats")


class ScriptedEngine(Engine):
    """Says `lines[turn]`, or whatever `script(request, turn)` returns.

    >>> import asyncio
    >>> engine = ScriptedEngine(ScriptedConfig(lines=["42"]))
    >>> asyncio.run(engine.generate(GenerateRequest(messages=(), session="s"))).text
    '42'
    """

    Config = ScriptedConfig
    follows_policy = False

    def __init__(
        self,
        config: BaseModel | None = None,
        *,
        script: Script | None = None,
        tokenizer: ChatTokenizer | None = None,
    ) -> None:
        settings = config if isinstance(config, ScriptedConfig) else ScriptedConfig()
        super().__init__(settings)
        self._script = script or _lines(settings.lines)
        self._tokenizer = tokenizer
        self._turns: dict[str, int] = {}
        self.version = 0

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Level.TOKENS if self._tokenizer else Level.TEXT, images=self._tokenizer is None)

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        return self._tokenizer

    async def generate(self, request: GenerateRequest) -> Completion:
        turn = self._turns.get(request.session, 0)
        self._turns[request.session] = turn + 1
        text = self._script(request, turn)
        if self._tokenizer is None or request.prompt_ids is None:
            return Completion(text, policy_version=self.version)
        ids = [*self._tokenizer.encode(text), self._tokenizer.eos_ids[0]]
        cut = ids[: request.sampling.max_tokens]
        finish: Finish = "stop" if len(cut) == len(ids) else "length"
        return Completion(
            text=text if finish == "stop" else self._tokenizer.decode(cut),
            finish=finish,
            prompt_ids=request.prompt_ids,
            token_ids=np.array(cut, dtype=np.int64),
            logprobs=np.zeros(len(cut), dtype=np.float32),
            policy_version=self.version,
        )

    def end_session(self, session: str) -> None:
        self._turns.pop(session, None)

    async def update_weights(self, version: int, source: Any = None) -> None:
        self.version = version


def _lines(lines: Sequence[str]) -> Script:
    return lambda request, turn: lines[min(turn, len(lines) - 1)]
