"""`HFEngine`: exact tokens from a transformers model in this process, on a CPU or one GPU.

Here requests become rows and rows become completions. The pieces: `batching` decides who is generated together,
`decoding` runs the tokens, `kv_cache` and `sampling` serve it, `merged` keeps a plain copy of a LoRA model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from peft import PeftModel
from pydantic import BaseModel, Field

from plugym.engine import Capabilities, ChatTokenizer, Completion, Engine, GenerateRequest, Level, Sampling
from plugym.errors import BadInput
from plugym.rollout.chat import HFChatTokenizer
from plugym.trajectory import IntArray
from plugym_runners.local.batching import Batcher, Job
from plugym_runners.local.decoding import Decoder, Row
from plugym_runners.local.kv_cache import CacheShape, SessionCache
from plugym_runners.local.merged import MergedCopy

if TYPE_CHECKING:
    from plugym_runners.local.models import LoadedModel


class HFEngineConfig(BaseModel, extra="forbid"):
    """Settings of the in-process engine. A bound model brings its own name, dtype and device."""

    model: str | None = Field(None, description="model to load; none when the runner shares the learner's")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the weights it loads")
    device: str = Field("cpu", description="torch device of the weights it loads")
    max_batch: int = Field(64, ge=1, description="rows generated together at most")
    batching: Literal["lockstep", "eager"] = Field(
        "lockstep",
        description="lockstep: batches depend on who is playing, so a run repeats itself; "
        "eager: whoever is there goes, which is faster where environments are slow and uneven",
    )
    lora: Literal["merged", "live"] = Field(
        "merged", description="merged: sample from a copy with the adapter added in; live: from the model as it is"
    )
    cache_tokens: int = Field(32768, ge=0, description="tokens whose keys and values are kept between turns, at most")


@dataclass(frozen=True, slots=True)
class _Choices:
    """A request to score fixed answers."""

    prompt: IntArray
    answers: tuple[IntArray, ...]
    sampling: Sampling


class HFEngine(Engine):
    """Generates with a transformers causal language model.

    A request's prompt may come as ids or as messages. One worker thread generates, so the event loop never waits.
    Full fine-tuning samples from the very module that is trained: do not train while requests run.
    """

    Config: ClassVar[type[BaseModel]] = HFEngineConfig

    def __init__(self, config: BaseModel) -> None:
        super().__init__(config)
        self.settings = config if isinstance(config, HFEngineConfig) else HFEngineConfig()
        self._loaded: LoadedModel | None = None
        self._tokenizer: HFChatTokenizer | None = None
        self._merged: MergedCopy | None = None
        self._decoder: Decoder | None = None
        self._cache = SessionCache(self.settings.cache_tokens)
        self._batcher: Batcher[Row | _Choices, Completion] | None = None
        self._version = 0

    def bind(self, loaded: LoadedModel) -> None:
        """Use this model instead of loading one. Call it before `open`."""
        self._loaded = loaded
        self._tokenizer = HFChatTokenizer(loaded.tokenizer, loaded.eos_ids)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Level.TOKENS, self._bound().max_context, choices=True)

    @property
    def tokenizer(self) -> ChatTokenizer:
        self._bound()
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def counts(self) -> dict[str, int]:
        """Totals so far: tokens of prompts by how they were read (`cached`, `shared`, `prefilled`), tokens `sampled`,
        and sessions `evicted` because `cache_tokens` was too small for all of them."""
        totals = dict(self._decoder.counts) if self._decoder else {}
        return {**totals, "evicted": self._cache.evicted}

    async def open(self) -> None:
        """Raises `BadInput` when there is no model to load, or one whose attention this engine cannot cache."""
        if self._batcher is not None:
            return
        if self._loaded is None and self.settings.model is None:
            raise BadInput("engine hf has no model: set engine.model")
        self._batcher = Batcher(
            self._work, max_rows=self.settings.max_batch, lockstep=self.settings.batching == "lockstep"
        )
        try:
            await self._batcher.call(self._prepare)
        except BaseException:
            await self.close()
            raise

    async def generate(self, request: GenerateRequest) -> Completion:
        """Stops at the end of the model's context with finish "length". Raises `BadInput` for what this engine does
        not offer, `ValueError` for a prompt without tokens or with tokens the model does not have."""
        job = self._job(request)
        try:
            return await self._open_batcher().submit(job)
        finally:
            if job.future.cancelled() and isinstance(job.payload, Row):
                job.payload.abandoned = True

    def announce(self, sessions: Sequence[str]) -> None:
        """Announce only sessions that really play at the same time: a round waits for all of them."""
        self._open_batcher().announce(sessions)

    def end_session(self, session: str) -> None:
        if self._batcher is not None:
            self._batcher.end(session)
            self._batcher.post(lambda: self._cache.drop(session))

    async def update_weights(self, version: int, source: Any = None) -> None:
        """Sample from the weights as they are now. `source`: None for the bound model, another module of its shape,
        or the path of a model to load."""

        def update() -> None:
            if isinstance(source, str | Path):
                self._loaded = self._load(str(source))
            elif source is not None:
                self._loaded = dataclasses.replace(self._bound(), model=source)
            if source is not None:
                self._prepare()
            elif self._merged is not None:
                self._merged.refresh()
            self._cache.clear()
            self._version = version

        await self._open_batcher().call(update)

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
        self._decoder = self._merged = self._loaded = self._tokenizer = None
        self._cache.clear()

    def _bound(self) -> LoadedModel:
        if self._loaded is None:
            raise RuntimeError("the engine has no model yet: await open() first")
        return self._loaded

    def _open_batcher(self) -> Batcher[Row | _Choices, Completion]:
        if self._batcher is None:
            raise RuntimeError("the engine is not open: await open() first")
        return self._batcher

    def _load(self, spec: str) -> LoadedModel:
        from plugym_runners.local.models import load_model

        return load_model(spec, dtype=self.settings.dtype, device=self.settings.device)

    def _prepare(self) -> None:
        """Load what is missing and build what generates from it. Runs in the worker thread."""
        if self._loaded is None:
            assert self.settings.model is not None
            self.bind(self._load(self.settings.model))
        loaded = self._bound()
        model: Any = loaded.model
        self._merged = None
        if isinstance(model, PeftModel):
            self._merged = MergedCopy(model) if self.settings.lora == "merged" else None
            model = self._merged.model if self._merged else model.get_base_model()
        counts = self._decoder.counts if self._decoder else None
        self._decoder = Decoder(model, self.tokenizer, CacheShape.of(model, loaded.max_context), self._cache)
        if counts:
            self._decoder.counts = counts

    def _job(self, request: GenerateRequest) -> Job[Row | _Choices, Completion]:
        if request.adapter is not None:
            raise BadInput(f"engine hf serves one policy and has no adapter {request.adapter!r}")
        if request.media:
            raise BadInput("engine hf takes text only: the environment sent an image")
        prompt, sampling = self._prompt(request), request.sampling
        order = (len(prompt), request.session, prompt.tobytes(), request.seed)
        room = self._bound().max_context - len(prompt)
        if not request.choices:
            if sampling.temperature < 0:
                raise ValueError(f"temperature {sampling.temperature} is negative")
            row = Row(prompt, sampling, request.seed, request.session, min(sampling.max_tokens, room))
            return Job(row, session=request.session, order=order, rows=1)
        answers = tuple(np.array(self.tokenizer.encode(text), dtype=np.int64) for text in request.choices)
        if any(len(answer) == 0 or len(answer) > room for answer in answers):
            raise ValueError(f"every choice needs 1 to {room} tokens after a prompt of {len(prompt)}")
        choices = _Choices(prompt, answers, sampling)
        return Job(choices, session=request.session, order=order, rows=len(answers))

    def _prompt(self, request: GenerateRequest) -> IntArray:
        ids = request.prompt_ids
        if ids is None:
            text = self.tokenizer.render(request.messages or (), request.tools, generation_prompt=True)
            ids = np.array(self.tokenizer.encode(text), dtype=np.int64)
        size = self._bound().model.get_input_embeddings().weight.shape[0]
        if len(ids) == 0 or ids.min() < 0 or ids.max() >= size:
            raise ValueError(f"the prompt must have at least one token, each within [0, {size})")
        return np.ascontiguousarray(ids, dtype=np.int64)

    def _work(self, jobs: Sequence[Job[Row | _Choices, Completion]]) -> None:
        """One batch, all rows or all choices. Runs in the worker thread."""
        assert self._decoder is not None
        scored = [(job, job.payload) for job in jobs if isinstance(job.payload, _Choices)]
        if scored:
            self._score(self._decoder, scored)
            return
        rows = {job.payload: job for job in jobs if isinstance(job.payload, Row)}
        self._decoder.run(list(rows), lambda row: rows[row].resolve(self._completion(row)))

    def _completion(self, row: Row) -> Completion:
        tokens = row.tokens
        ended = bool(tokens) and tokens[-1] in self.tokenizer.eos_ids
        return Completion(
            text=self.tokenizer.decode(tokens[:-1] if ended else tokens),
            finish=row.finish,
            prompt_ids=row.prompt,
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=np.array(row.logprobs, dtype=np.float32),
            policy_version=self._version,
        )

    def _score(self, decoder: Decoder, jobs: Sequence[tuple[Job[Row | _Choices, Completion], _Choices]]) -> None:
        flat = [(choices, answer) for _, choices in jobs for answer in choices.answers]
        scores = iter(
            decoder.score(
                [choices.prompt for choices, _ in flat],
                [answer for _, answer in flat],
                [choices.sampling for choices, _ in flat],
            )
        )
        for job, choices in jobs:
            values = tuple(next(scores) for _ in choices.answers)
            job.resolve(
                Completion(
                    "",
                    "choices",
                    prompt_ids=choices.prompt,
                    choice_logprobs=values,
                    policy_version=self._version,
                )
            )
