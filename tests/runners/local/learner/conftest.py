"""Shared by the tests of the local learner: small random models, random trajectories and an independent reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra 'torch'")
transformers = pytest.importorskip("transformers", reason="needs the extra 'torch'")

from plugym.trajectory import TokenStream, Trajectory, stream_of  # noqa: E402
from plugym_runners.local.learner import LearnerConfig, TorchLearner  # noqa: E402
from plugym_runners.local.models import LoadedModel  # noqa: E402
from plugym_runners.local.tiny import build_tokenizer  # noqa: E402

VOCABULARY = 61


def llama(seed: int = 0, dtype: Any = torch.float64, *, own_norm: bool = False, **settings: Any) -> Any:
    """A random two-layer Llama; in float64, so that 'equal' can mean equal but for the last digits.

    The library's own norm computes in float32 whatever the model is in: it stays only with `own_norm`.
    """
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": 0,
        "initializer_range": 0.3,
    }
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | settings))).to(dtype).eval()
    norms = [name for name, module in model.named_modules() if type(module).__name__ == "LlamaRMSNorm"]
    for name in [] if own_norm else norms:
        model.set_submodule(name, torch.nn.RMSNorm(model.config.hidden_size, eps=1e-6, dtype=dtype))
    return model


def random_stream(rng: np.random.Generator, prompt: Sequence[int], *lengths: int) -> TokenStream:
    """`lengths` are those of sampled, observed, sampled, ... tokens behind the prompt."""
    turns: list[tuple[list[int], list[int], list[float]]] = []
    new = list(prompt)
    for i, length in enumerate(lengths):
        ids = rng.integers(0, VOCABULARY, length).tolist()
        if i % 2:
            new = ids
        else:
            turns.append((new, ids, (-rng.random(length)).tolist()))
            new = []
    if new:
        turns.append((new, [], []))
    return stream_of(turns)


def random_trajectories(seed: int = 0) -> list[Trajectory]:
    """Two groups of three. Prompts are shared in a group; one episode has observations, one has two streams, one ends
    with an observation, one holds the pad id 0 everywhere, one sampled a single token."""
    rng = np.random.default_rng(seed)
    a, b, c = ([int(i) for i in rng.integers(0, VOCABULARY, n)] for n in (7, 3, 11))
    pads = stream_of([([0, 5, 0], [0, 0, 9, 0], [-1.0, -0.5, -0.2, -0.1])])
    streams = [
        [random_stream(rng, a, 4)],
        [random_stream(rng, a, 2, 5, 3)],
        [random_stream(rng, a, 1)],
        [random_stream(rng, b, 5), random_stream(rng, c, 2, 1, 2)],
        [random_stream(rng, b, 3, 4)],
        [pads],
    ]
    return [Trajectory(f"t{i}", None, f"g{i // 3}", streams=tuple(s)) for i, s in enumerate(streams)]


def naive_logp(model: Any, stream: TokenStream, temperature: float = 1.0) -> Any:
    """The obvious way: one stream at a time, logits at every position, then pick."""
    logits = model(input_ids=torch.tensor(stream.ids)[None]).logits[0]
    table = torch.log_softmax(logits / temperature, dim=-1)
    positions = torch.tensor(stream.positions)
    return table[positions - 1, torch.tensor(stream.ids)[positions]]


GRADIENT_STEP = {"lr": 1e15, "betas": (0.0, 0.0), "eps": 1e15, "grad_clip": 0.0}
"""Settings under which AdamW moves each weight by minus its gradient (to one part in 1e15 for one of size 1)."""


def learner(model: Any = None, *, needs: Any = frozenset(), temperature: float = 1.0, **settings: Any) -> TorchLearner:
    """A learner of a random model (the same for every call); full fine-tuning unless the settings say otherwise."""
    model = llama() if model is None else model
    loaded = LoadedModel("random", model, build_tokenizer(), eos_ids=(2,), max_context=128, path=Path("random"))
    torch.manual_seed(1)
    config = LearnerConfig(**{"method": "full"} | settings)
    return TorchLearner(loaded, config, needs=frozenset(needs), temperature=temperature)


@pytest.fixture
def make_learner() -> Callable[..., TorchLearner]:
    return learner


@pytest.fixture
def gradient_step() -> dict[str, Any]:
    return GRADIENT_STEP


@pytest.fixture
def make_llama() -> Callable[..., Any]:
    return llama


@pytest.fixture
def trajectories() -> list[Trajectory]:
    return random_trajectories()


@pytest.fixture
def naive() -> Callable[..., Any]:
    return naive_logp


@pytest.fixture
def make_stream() -> Callable[..., TokenStream]:
    return random_stream
