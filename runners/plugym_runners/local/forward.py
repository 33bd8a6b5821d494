"""From token streams to log-probs, entropies and values of their trained tokens: the learner's forward pass.

Only what a loss needs is computed: rows come from `packing.py`, and the output matrix, often the most expensive one, is
applied to the positions whose next token is trained and to no other. Any causal model of the transformers library will
do; what it does to its logits (scaling, soft caps) is kept, because its own `forward` runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from plugym.functional import entropy_from_logits, token_logprobs
from plugym.trajectory import IntArray, TokenStream

from .packing import Layout, lay_out
from .value_head import ValueHead

SHARING_MODELS = frozenset({"gemma", "granite", "llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "smollm3"})
"""Model types whose layers are plain attention over explicit positions, so that a mask can separate streams in one row.
Recurrent layers would carry state from one stream to the next. Every name here is checked by a test."""

EntropyUse = Literal["none", "metric", "loss"]
"""Whether entropy is left out, computed without gradient, or computed with it."""


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of all trained tokens, in the order streams, positions ascending: float32[n] each (float64 for such a model)."""

    logp: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None


class Predictor:
    """Runs one model. `temperature` is that of sampling; `share_prompts` computes equal prompts once.

    A hook narrows what the output matrix sees while a pass runs: nothing else may use the model at that moment. Streams
    are those that `check_trainable` lets pass.
    """

    def __init__(
        self,
        model: Any,
        *,
        temperature: float = 1.0,
        share_prompts: bool = True,
        value_head: ValueHead | None = None,
    ) -> None:
        self.model = model
        self.temperature = temperature
        self.value_head = value_head
        self.share = share_prompts and can_share(model)

    def predict(self, streams: Sequence[TokenStream], *, entropy: EntropyUse = "none") -> Predictions:
        """Log-probs, entropies as asked for, and values where there is a head."""
        targets = self._targets(streams)
        layouts = self._layouts(streams)
        parts = [self._predict(layout, targets[layout.order], entropy) for layout in layouts]
        return Predictions(
            self._in_order([part.logp for part in parts], layouts),
            None if entropy == "none" else self._in_order([part.entropy for part in parts], layouts),
            None if self.value_head is None else self._in_order([part.values for part in parts], layouts),
        )

    def values(self, streams: Sequence[TokenStream]) -> Tensor:
        """The value head alone: float32[n], without the cost of the output matrix."""
        if self.value_head is None:
            raise ValueError("this predictor has no value head")
        layouts = self._layouts(streams)
        parts = [self.value_head(self._run(layout, with_logits=False)[0]) for layout in layouts]
        return self._in_order(parts, layouts)

    def _predict(self, layout: Layout, targets: IntArray, entropy: EntropyUse) -> Predictions:
        hidden, logits = self._run(layout, with_logits=True)
        ids = torch.from_numpy(targets).to(logits.device)
        chunk = _chunk_tokens(logits)
        logp = token_logprobs(logits, ids, self.temperature, chunk_tokens=chunk)
        if entropy == "loss":
            spread = entropy_from_logits(logits, self.temperature, chunk_tokens=chunk)
        elif entropy == "metric":
            spread = _entropy_given_logp(logits.detach(), ids, logp.detach(), self.temperature, chunk)
        else:
            spread = None
        return Predictions(logp, spread, None if self.value_head is None else self.value_head(hidden))

    def _targets(self, streams: Sequence[TokenStream]) -> IntArray:
        """int64[n]: ids of the trained tokens."""
        parts = [stream.ids[stream.positions] for stream in streams]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def _layouts(self, streams: Sequence[TokenStream]) -> list[Layout]:
        return lay_out(streams, hidden_size(self.model), share=self.share)

    def _in_order(self, parts: Sequence[Tensor | None], layouts: Sequence[Layout]) -> Tensor:
        """Concatenate what came from several layouts, in the order of the streams."""
        tensors = [part for part in parts if part is not None]
        if not tensors:
            return torch.zeros(0, device=self._device)
        joined = torch.cat(tensors)
        order = np.argsort(np.concatenate([layout.order for layout in layouts]))
        return joined.index_select(0, torch.from_numpy(order).to(joined.device))

    @property
    def _device(self) -> torch.device:
        device: torch.device = self.model.get_input_embeddings().weight.device
        return device

    def _run(self, layout: Layout, *, with_logits: bool) -> tuple[Tensor, Tensor]:
        """Hidden states [m, H] and logits [m, V] (or [0, V]) of the columns in `layout.source`."""
        device = self._device
        source = torch.from_numpy(layout.source).to(device)
        with _narrow_head(self.model.get_output_embeddings(), source, with_logits) as seen:
            output = self.model(
                input_ids=torch.from_numpy(layout.ids).to(device),
                position_ids=torch.from_numpy(layout.positions).to(device),
                attention_mask=None if layout.segments is None else _mask(layout.segments).to(device),
                use_cache=False,
            )
        if len(seen) != 1:
            raise TypeError(
                f"{type(self.model).__name__} called its output layer {len(seen)} times in one pass, not once: "
                "the local learner cannot train this kind of model"
            )
        return seen[0], output.logits[0]


def can_share(model: Any) -> bool:
    """Whether `model` separates the streams of one row when it is given a mask."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    return (
        config.model_type in SHARING_MODELS
        and config._attn_implementation == "sdpa"
        and kinds == {"full_attention"}
        and getattr(config, "sliding_window", None) is None
    )


def hidden_size(model: Any) -> int:
    """Width of the last hidden state, H."""
    size: int = model.config.get_text_config().hidden_size
    return size


def vocabulary_size(model: Any) -> int:
    """Number of token ids the model can read, V."""
    size: int = model.get_input_embeddings().weight.shape[0]
    return size


@contextmanager
def checkpointed(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Layers recompute their activations in the backward pass instead of keeping them (Chen et al., arXiv 1604.06174).

    The library's own switch works in training mode only, which would turn on every dropout of the model as well.
    """
    layers = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)] if enabled else []
    for layer in layers:
        # An instance attribute hides the method of the class until it is deleted.
        layer.forward = _recomputing(layer.forward)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _recomputing(forward: Any) -> Any:
    def run(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


@contextmanager
def _narrow_head(head: nn.Module, source: Tensor, with_logits: bool) -> Iterator[list[Tensor]]:
    """While open, `head` computes logits only at `source`; the hidden states there are appended to the list."""
    seen: list[Tensor] = []

    def narrow(_: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
        # Not an advanced index: where streams share a column, index_select adds up their gradients in a fixed order.
        hidden = args[0].flatten(0, 1).index_select(0, source)
        seen.append(hidden)
        return (hidden if with_logits else hidden[:0])[None]

    handle = head.register_forward_pre_hook(narrow)
    try:
        yield seen
    finally:
        handle.remove()


def _mask(segments: IntArray) -> Tensor:
    """bool[n, 1, L, L], True where row i may look at column j: at or before it, in the prompt or in its own tail.

    Padding has segment -1. It looks at the prompt, so no row of the mask is empty, which would make it nan.

    >>> _mask(np.array([[0, 1, 2]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    """
    columns = torch.from_numpy(segments)
    same = (columns[:, :, None] == columns[:, None, :]) | (columns[:, None, :] == 0)
    return same.tril()[:, None]


def _chunk_tokens(logits: Tensor) -> int:
    """Rows of the vocabulary per step: what stays in a CPU's cache (2 MB), or what keeps a GPU busy (512 MB)."""
    numbers = 2**19 if logits.device.type == "cpu" else 2**27
    return max(1, numbers // logits.shape[-1])


def _entropy_given_logp(logits: Tensor, ids: Tensor, logp: Tensor, temperature: float, chunk: int) -> Tensor:
    """`H = log Z - E[z]` where the log-prob of one word is known, and with it `log Z = z_id - log p_id`: no softmax.

    For the metric only: it has no gradient, and in float32 it is exact to about 1e-4.
    """
    result = torch.empty_like(logp)
    for start in range(0, len(ids), chunk):
        rows = slice(start, start + chunk)
        scaled = logits[rows].to(logp.dtype) / temperature
        log_z = scaled.gather(1, ids[rows, None]) - logp[rows, None]
        result[rows] = log_z.squeeze(1) - torch.linalg.vecdot(torch.exp(scaled - log_z), scaled)
    return result
