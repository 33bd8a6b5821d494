"""`OpenAIEngine`: completions from any OpenAI-compatible endpoint, with token ids and log-probs where it gives them.

The server's weights are its own. A run can evaluate, judge and collect episodes with this engine; to train it needs an
engine that takes new weights (`vllm`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel

from plugym.engine import Capabilities, ChatTokenizer, Completion, Engine, GenerateRequest, Level, Sampling
from plugym.errors import BadInput, InfraError, InfraKind
from plugym.rollout.chat import HFChatTokenizer
from plugym.trajectory import IntArray
from plugym_runners.engines.client import Client
from plugym_runners.engines.probe import HELLO, adapt, find_model, probe
from plugym_runners.engines.refusals import Flaw, Refusal, overflow
from plugym_runners.engines.settings import EndpointConfig, api_key, check_url
from plugym_runners.engines.wire import Dialect, build, choice_body, read, read_choices

log = logging.getLogger("plugym.engines")


class Bound(Protocol):
    """What an engine takes from a model that the runner has in memory."""

    tokenizer: Any
    eos_ids: tuple[int, ...]
    max_context: int


@dataclass(slots=True)
class _Live:
    """What exists between `open` and `close`. The dialect may still lose a parameter."""

    client: Client
    dialect: Dialect
    max_context: int | None


class OpenAIEngine(Engine):
    """Asks a server. `counts` are totals: `requests`, `retries`, each kind of failed try, `context_overflow`,
    `shortened` (the token limit cut to what the context left) and `unfit_logprobs` (see `EndpointConfig.logprobs`).

    >>> engine = OpenAIEngine(EndpointConfig(base_url="http://127.0.0.1:8000/v1"))
    >>> engine.settings.ask
    'tokens'
    """

    Config: ClassVar[type[BaseModel]] = EndpointConfig
    follows_policy: ClassVar[bool] = False
    name: ClassVar[str] = "openai"

    def __init__(self, config: BaseModel) -> None:
        super().__init__(config)
        self.settings = config if isinstance(config, EndpointConfig) else EndpointConfig()
        self.counts: Counter[str] = Counter()
        self._tokenizer: HFChatTokenizer | None = None
        self._opened: _Live | None = None
        self._version = 0

    def bind(self, loaded: Bound) -> None:
        """Render prompts with this model's tokenizer. Call it before `open`."""
        self._tokenizer = HFChatTokenizer(loaded.tokenizer, loaded.eos_ids)

    @property
    def capabilities(self) -> Capabilities:
        dialect = self._live.dialect
        chat = dialect.api == "chat"
        return Capabilities(dialect.level, self._live.max_context, choices=dialect.choices, images=chat)

    @property
    def tokenizer(self) -> ChatTokenizer | None:
        """None where the server renders messages itself."""
        return self._tokenizer if self.settings.api == "completions" else None

    @property
    def _live(self) -> _Live:
        if self._opened is None:
            raise RuntimeError("the engine is not open: await open() first")
        return self._opened

    async def open(self) -> None:
        """Connect and probe. Raises `BadInput` for an address, key or model that cannot be right."""
        if self._opened is None:
            if self.settings.base_url is None:
                raise BadInput(f"engine {self.name} has no address: set engine.base_url")
            await self._connect(check_url(self.settings.base_url), api_key(self.settings))

    async def _connect(self, base_url: str, key: str | None) -> None:
        settings = self.settings
        await self._find_tokenizer()
        client = Client(settings, base_url, key, self.counts)
        try:
            served = await find_model(client, settings)
            prompt = self._prompt(HELLO)
            self._opened = _Live(client, await probe(client, settings, served.model, prompt), served.max_context)
        except (InfraError, Flaw) as error:
            await client.close()
            flaw = error.__cause__ if isinstance(error, InfraError) else error
            if isinstance(flaw, Flaw) and (fix := _fix(flaw)):
                raise BadInput(f"engine {self.name} at {base_url}: {error}; {fix}") from error
            raise
        except BaseException:
            await client.close()
            raise

    async def _find_tokenizer(self) -> None:
        settings = self.settings
        if settings.api == "completions" and self._tokenizer is None:
            if settings.tokenizer is None:
                raise BadInput("engine.api completions renders prompts here: set engine.tokenizer, or use chat")
            from plugym_runners.local.models import load_tokenizer

            self._tokenizer = HFChatTokenizer(*await asyncio.to_thread(load_tokenizer, settings.tokenizer))

    async def generate(self, request: GenerateRequest) -> Completion:
        """A context that is full gives an empty completion with finish "overflow".

        Raises `InfraError` for what retries did not mend, `BadInput` for what this server does not offer.
        """
        live, version = self._live, self._version
        if live.dialect.api == "completions" and (request.media or any(m.images for m in request.messages or ())):
            raise BadInput("the completions API takes text only and the environment sent an image: use engine.api chat")
        if live.dialect.api == "chat" and request.messages is None:
            raise BadInput("the chat API takes messages, not token ids: use engine.api completions")
        prompt = self._prompt(request)
        if request.choices:
            return await self._score(request, prompt, version)
        completion = await self._sample(live, request, prompt)
        logprobs = completion.logprobs if self._fits(request.sampling) else None
        return dataclasses.replace(completion, logprobs=logprobs, policy_version=version)

    async def _sample(self, live: _Live, request: GenerateRequest, prompt: IntArray | None) -> Completion:
        limit = request.sampling.max_tokens
        while True:
            dialect = live.dialect
            body = build(request, dialect, prompt)
            body[dialect.length_field] = limit
            reader = partial(read, dialect=dialect, request=request, prompt=prompt, tokenizer=self.tokenizer)
            try:
                return await live.client.post(dialect.path, body, reader)
            except Refusal as refusal:
                full = overflow(refusal)
                if full is None:
                    self._learn(live, dialect, refusal, body)
                    continue
                room = full[0] - full[1] if full else 0
                if not 0 < room < limit:
                    self.counts["context_overflow"] += 1
                    return _nothing(dialect.level, prompt)
                self.counts["shortened"] += 1
                limit = room

    def _learn(self, live: _Live, dialect: Dialect, refusal: Refusal, body: dict[str, Any]) -> None:
        """Take note of a parameter that only this request showed to be unknown. Raises `InfraError` when that is not
        it, or when the level would change under a run that relies on it. `dialect` is the one the body is in."""
        adapted = adapt(dialect, refusal, body, keep=self.settings.extra_body.keys())
        if adapted is None or {"logprobs", "return_token_ids"} & (adapted.dropped - dialect.dropped):
            where = f"POST {live.client.base_url}{dialect.path}"
            raise InfraError(InfraKind.ENGINE, str(refusal), retryable=False, where=where) from refusal
        live.dialect = dataclasses.replace(adapted, model=live.dialect.model)  # new weights may have come meanwhile

    async def _score(self, request: GenerateRequest, prompt: IntArray | None, version: int) -> Completion:
        """The log-probs of fixed answers, from the log-probs a server gives of its prompt."""
        live = self._live
        if not live.dialect.choices or prompt is None or self._tokenizer is None:
            raise BadInput("this endpoint cannot score choices: it takes engine.api completions and a server with echo")
        if request.sampling.temperature not in (0.0, 1.0):
            raise BadInput("an endpoint scores choices at temperature 1 only")
        answers = [self._tokenizer.encode(text) for text in request.choices]
        if not all(answers):
            raise ValueError("every choice needs at least one token")
        body = choice_body(prompt, answers, request.adapter or live.dialect.model)
        try:
            values = await live.client.post(
                "/completions", body, partial(read_choices, start=len(prompt), answers=answers)
            )
        except Refusal as refusal:
            raise InfraError(InfraKind.ENGINE, f"choices: {refusal}", retryable=False) from refusal
        return Completion("", "choices", prompt, choice_logprobs=values, policy_version=version)

    def _prompt(self, request: GenerateRequest) -> IntArray | None:
        """Exact ids for the completions API; None where the server renders."""
        tokenizer = self.tokenizer
        if tokenizer is None or request.prompt_ids is not None:
            return request.prompt_ids if tokenizer is not None else None
        text = tokenizer.render(request.messages or (), request.tools, generation_prompt=True)
        return np.array(tokenizer.encode(text), dtype=np.int64)

    def _fits(self, sampling: Sampling) -> bool:
        """Whether the server's log-probs are those that `Sampling` promises. Others are withheld, so that nobody
        trains on them."""
        if self.settings.logprobs == "raw":
            fits = sampling.temperature in (0.0, 1.0)
        else:
            fits = sampling.top_p == 1.0 and sampling.top_k == 0
        if not fits and self._live.dialect.level is not Level.TEXT:
            self.counts["unfit_logprobs"] += 1
            if self.counts["unfit_logprobs"] == 1:
                log.warning(
                    "the server's log-probs are %s and do not belong to temperature %g, top_p %g, top_k %d: they are "
                    "left out. Sample at temperature 1 without top_p and top_k, or change engine.logprobs",
                    *(self.settings.logprobs, sampling.temperature, sampling.top_p, sampling.top_k),
                )
        return fits

    async def update_weights(self, version: int, source: Any = None) -> None:
        """Raises `BadInput`: an endpoint keeps its weights."""
        raise BadInput("engine openai cannot give a server new weights: train with engine vllm or hf")

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.client.close()
        self._opened = None


def _nothing(level: Level, prompt: IntArray | None) -> Completion:
    """The completion of a prompt that leaves no room."""
    if level is not Level.TOKENS:
        return Completion("", "overflow")
    none = np.zeros(0, dtype=np.int64)
    return Completion("", "overflow", none if prompt is None else prompt, none, none.astype(np.float32))


def _fix(flaw: Flaw) -> str:
    """What the user can do about a server that cannot be opened; empty where it is not the user's doing."""
    if flaw.kind == "unreachable":
        return "is it running? check engine.base_url"
    if isinstance(flaw, Refusal):
        fixes = {
            401: "check engine.api_key_env",
            403: "check engine.api_key_env",
            404: "check engine.base_url and engine.model",
        }
        return fixes.get(flaw.status, "")
    return ""
