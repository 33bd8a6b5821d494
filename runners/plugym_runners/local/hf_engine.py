"""`HFEngine`: exact tokens from a transformers model in this process, on a CPU or one GPU.

Here requests become rows and rows become completions. The pieces: `batching` decides who is generated together,
`decoding` runs the tokens, `kv_cache` and `sampling` serve it, `merged` keeps a plain copy of a LoRA model. Importing
this module imports no torch: settings can be read without it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from plugym.engine import Capabilities, ChatTokenizer, Completion, Engine, GenerateRequest, Level
from plugym.errors import BadInput
from plugym.rollout.chat import HFChatTokenizer
from plugym.trajectory import IntArray
from plugym_runners.local.batching import Batcher, Job
from plugym_runners.local.rows import Answers, Row

if TYPE_CHECKING:
    from plugym_runners.local.decoding import Decoder
    from plugym_runners.local.merged import MergedCopy
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


class HFEngine(Engine):
    """Generates with a transformers causal language model.

    A request's prompt may come as ids or as messages. One worker thread generates, so the event loop never waits.
    Full fine-tuning samples from the very module that is trained: do not train while requests run.
    """

    Config: ClassVar[type[BaseModel]] = HFEngineConfig

    def __init__(self, config: BaseModel) -> None:
        super().__init__(config)
        self.settings = HFEngineConfig.model_validate(config.model_dump())
        self._loaded: LoadedModel | None = None
        self._tokenizer: HFChatTokenizer | None = None
        self._merged: MergedCopy | None = None
        self._decoder: Decoder | None = None
        self._batcher: Batcher[Row | Answers, Completion] | None = None
        self._version = 0

    def bind(self, loaded: LoadedModel) -> None:
        """Use this model instead of loading one. Call it before `open`."""
        self._loaded = loaded
        self._tokenizer = HFChatTokenizer(loaded.tokenizer, loaded.eos_ids)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(Level.TOKENS, _opened(self._loaded).max_context, choices=True)

    @property
    def tokenizer(self) -> ChatTokenizer:
        return _opened(self._tokenizer)

    @property
    def counts(self) -> dict[str, int]:
        """Totals so far: tokens of prompts (`prompt`), of these kept from earlier turns (`cached`) and really read
        (`prefilled`, the rest was equal to another row's), tokens `sampled`, and sessions `evicted` because
        `cache_tokens` was too small for all of them."""
        decoder = _opened(self._decoder)
        totals = {name: decoder.counts[name] for name in ("prompt", "cached", "prefilled", "sampled")}
        return {**totals, "evicted": decoder.cache.evicted}

    async def open(self) -> None:
        """Raises `BadInput` when there is no model to load, or one whose attention this engine cannot cache."""
        if self._batcher is not None:
            return
        if self._loaded is None and self.settings.model is None:
            raise BadInput("engine hf has no model: set engine.model")
        lockstep = self.settings.batching == "lockstep"
        self._batcher = Batcher(self._work, max_rows=self.settings.max_batch, lockstep=lockstep)
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
            return await _opened(self._batcher).submit(job)
        finally:
            if isinstance(job.payload, Row):
                job.payload.abandoned = job.future.cancelled()

    def announce(self, sessions: Sequence[str]) -> None:
        """Announce only sessions that really play at the same time: a round waits for all of them."""
        _opened(self._batcher).announce(sessions)

    def end_session(self, session: str) -> None:
        if self._batcher is not None and self._decoder is not None:
            cache = self._decoder.cache
            self._batcher.end(session)
            self._batcher.post(lambda: cache.drop(session))

    async def update_weights(self, version: int, source: Any = None) -> None:
        """Sample from the weights as they are now. `source`: None for the bound model, another module, or the path of
        a model to load."""

        def update() -> None:
            if source is not None:
                loaded = self._load(str(source)) if isinstance(source, str | Path) else None
                self._loaded = loaded or dataclasses.replace(_opened(self._loaded), model=source)
                self._prepare()
            elif self._merged is not None:
                self._merged.refresh()
            _opened(self._decoder).cache.clear()
            self._version = version

        await _opened(self._batcher).call(update)

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
        self._decoder = self._merged = None

    def _load(self, spec: str) -> LoadedModel:
        from plugym_runners.local.models import load_model

        return load_model(spec, dtype=self.settings.dtype, device=self.settings.device)

    def _prepare(self) -> None:
        """Load what is missing and build what generates from it. Runs in the worker thread."""
        if self._loaded is None:
            self.bind(self._load(str(self.settings.model)))
        from peft import PeftModel

        from plugym_runners.local.decoding import Decoder
        from plugym_runners.local.kv_cache import CacheShape, SessionCache
        from plugym_runners.local.merged import MergedCopy

        loaded = _opened(self._loaded)
        model: Any = loaded.model
        self._merged = None
        if isinstance(model, PeftModel):
            self._merged = MergedCopy(model) if self.settings.lora == "merged" else None
            model = self._merged.model if self._merged else model.get_base_model()
        shape = CacheShape.of(model, loaded.max_context)
        if self._decoder is None:
            self._decoder = Decoder(model, shape, self.tokenizer, SessionCache(self.settings.cache_tokens))
        else:
            self._decoder.use(model, shape)

    def _job(self, request: GenerateRequest) -> Job[Row | Answers, Completion]:
        if request.adapter is not None:
            raise BadInput(f"engine hf serves one policy and has no adapter {request.adapter!r}")
        if request.media:
            raise BadInput("engine hf takes text only: the environment sent an image")
        prompt, sampling = self._prompt(request), request.sampling
        room = _opened(self._loaded).max_context - len(prompt)
        order = (len(prompt), request.session, prompt.tobytes(), request.seed)
        if not request.choices:
            if sampling.temperature < 0:
                raise ValueError(f"temperature {sampling.temperature} is negative")
            row = Row(prompt, sampling, request.seed, request.session, min(sampling.max_tokens, room))
            return Job(row, session=request.session, order=order, rows=1)
        answers = tuple(np.array(self.tokenizer.encode(text), dtype=np.int64) for text in request.choices)
        if any(len(answer) == 0 or len(answer) > room for answer in answers):
            raise ValueError(f"every choice needs 1 to {room} tokens after a prompt of {len(prompt)}")
        payload = Answers(prompt, answers, sampling)
        return Job(payload, session=request.session, order=order, rows=len(answers))

    def _prompt(self, request: GenerateRequest) -> IntArray:
        ids = request.prompt_ids
        if ids is None:
            text = self.tokenizer.render(request.messages or (), request.tools, generation_prompt=True)
            ids = np.array(self.tokenizer.encode(text), dtype=np.int64)
        size = _opened(self._decoder).vocabulary
        if len(ids) == 0 or ids.min() < 0 or ids.max() >= size:
            raise ValueError(f"the prompt must have at least one token, each within [0, {size})")
        return np.ascontiguousarray(ids, dtype=np.int64)

    def _work(self, jobs: Sequence[Job[Row | Answers, Completion]]) -> None:
        """One batch, all rows or all answers. Runs in the worker thread."""
        decoder, version = _opened(self._decoder), self._version
        rows = {job.payload: job for job in jobs if isinstance(job.payload, Row)}
        if rows:
            decoder.run(list(rows), lambda row: rows[row].resolve(self._completion(row)))
            return
        requests = [job.payload for job in jobs if isinstance(job.payload, Answers)]
        for job, values in zip(jobs, decoder.score(requests), strict=True):
            prompt = job.payload.prompt
            job.resolve(Completion("", "choices", prompt, choice_logprobs=values, policy_version=version))

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


T = TypeVar("T")


def _opened(part: T | None) -> T:
    if part is None:
        raise RuntimeError("the engine is not open: await open() first")
    return part
