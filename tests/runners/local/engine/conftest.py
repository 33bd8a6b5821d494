"""Shared by the tests of the in-process engine: a small random model, an engine around it, and its judge, the plain
forward pass without cache, padding or batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
transformers = pytest.importorskip("transformers", reason="needs the extra 'torch'")

from plugym.engine import Completion, GenerateRequest, Sampling  # noqa: E402
from plugym.trajectory import FloatArray, IntArray  # noqa: E402
from plugym_runners.local.hf_engine import HFEngine, HFEngineConfig  # noqa: E402
from plugym_runners.local.models import LoadedModel  # noqa: E402
from plugym_runners.local.tiny import build_tokenizer  # noqa: E402

T = TypeVar("T")
CONTEXT = 160


def llama(seed: int = 0, **settings: Any) -> Any:
    """A random two-layer Llama in float32 whose distributions are uneven enough to tell tokens apart."""
    sizes = {
        "vocab_size": len(build_tokenizer()),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | settings))).eval()


def loaded_of(model: Any, eos_ids: Sequence[int] = ()) -> LoadedModel:
    return LoadedModel("test", model, build_tokenizer(), tuple(eos_ids), CONTEXT, Path())


class Play:
    """Runs an `async` scene against an open engine: `play(scene, model, eos_ids=..., **engine settings)`."""

    def __call__(
        self,
        scene: Callable[[HFEngine], Awaitable[T]],
        model: Any = None,
        *,
        eos_ids: Sequence[int] = (),
        **settings: Any,
    ) -> T:
        async def run() -> T:
            engine = HFEngine(HFEngineConfig(**settings))
            engine.bind(loaded_of(llama() if model is None else model, eos_ids))
            await engine.open()
            try:
                return await asyncio.wait_for(scene(engine), timeout=60)
            finally:
                await engine.close()

        return asyncio.run(run())


@pytest.fixture
def play() -> Play:
    return Play()


def prompts(*lengths: int, seed: int = 0) -> list[IntArray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, len(build_tokenizer()), length) for length in lengths]


def requests(many: Sequence[IntArray], **sampling: Any) -> list[GenerateRequest]:
    return [
        GenerateRequest(prompt_ids=prompt, sampling=Sampling(**sampling), seed=100 + i, session=f"s{i:03d}")
        for i, prompt in enumerate(many)
    ]


async def together(engine: HFEngine, many: Sequence[GenerateRequest]) -> list[Completion]:
    """All at once, in one round."""
    engine.announce([request.session for request in many])
    try:
        return await asyncio.gather(*(engine.generate(request) for request in many))
    finally:
        for request in many:
            engine.end_session(request.session)


@torch.no_grad()
def reference(model: Any, prompt: IntArray, tokens: IntArray, temperature: float = 1.0) -> FloatArray:
    """Log-probs of `tokens` after `prompt`, from one pass over everything: float32[len(tokens)]."""
    ids = torch.from_numpy(np.concatenate([prompt, tokens]))[None]
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float() / temperature
    logp = torch.log_softmax(logits, dim=-1).gather(1, ids[0, len(prompt) :, None])[:, 0]
    result: FloatArray = logp.numpy()
    return result
