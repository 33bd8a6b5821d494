"""Keys and values: `RowCache` holds those of the batch that is being decoded, `SessionCache` those between turns.

A batch is right-aligned: every row ends at column `end`, row i begins at column `starts[i]`, and what lies to the left
of it is padding that the masks made here hide. A decoding step so writes one column for all rows and reads a view.
Which tokens lie in a row is the business of whoever uses these classes, except that `SessionCache` compares them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from plugym.errors import BadInput
from plugym.trajectory import IntArray

GROWTH = 64
"""Columns added at least when a batch outgrows its buffer."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token of one sequence needs: tensors [layers, 2, heads, dim], keys first."""

    layers: int
    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, model: Any, max_context: int) -> CacheShape:
        """Read it from a transformers model. Raises `BadInput` where the cache or the masks would be wrong: recurrent
        layers, attention windows shorter than the context, kernels that take no mask."""
        config = model.config.get_text_config(decoder=True)
        if config._attn_implementation not in ("sdpa", "eager"):
            raise BadInput(
                f"engine hf needs attention 'sdpa' or 'eager', this model uses {config._attn_implementation!r}"
            )
        for layer in DynamicCache(config=config).layers:
            window = getattr(layer, "sliding_window", None)
            if not hasattr(layer, "keys") or (window is not None and window < max_context):
                raise BadInput(
                    f"engine hf runs full attention only and {config.model_type!r} has other layers: "
                    "serve it with --engine vllm"
                )
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        weight = model.get_input_embeddings().weight
        return cls(config.num_hidden_layers, heads, dim, weight.dtype, weight.device)


class RowCache(Cache):
    """The keys and values of a batch, in one preallocated tensor [layers, 2, rows, heads, columns, dim].

    starts: int[rows], first column of each row. `end`: columns in use. Before each forward pass `open_columns` says
    where its tokens go.
    """

    def __init__(self, shape: CacheShape, starts: Sequence[int], columns: int) -> None:
        super().__init__(layers=[])
        self.starts = list(starts)
        self.end = 0
        size = (shape.layers, 2, len(starts), shape.heads, columns, shape.dim)
        self._data = torch.empty(size, dtype=shape.dtype, device=shape.device)
        # A masked column still takes part as 0 * value, and memory that was never written may hold NaN.
        self._data[:, :, :, :, : max(starts)] = 0.0
        self._mask = self._hide_padding()
        self._kept: Tensor | None = None
        self._select(len(starts))

    def open_columns(self, first: int, last: int, *, rows: int | None = None, written: Tensor | None = None) -> None:
        """The next forward pass fills columns [first, last) of the first `rows` rows.

        written: bool[rows, last - first], False where a column already holds an older token that must stay.
        """
        if last > self._data.shape[4]:
            self._grow(last)
        if rows is not None and rows != self._rows:
            self._select(rows)
        self._kept = None if written is None else ~written[:, None, :, None]
        self._first, self.end = first, last

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Called by every attention layer: store, and return all columns that somebody still looks at."""
        first, last = self._first, self.end
        keys, values = self._views[layer_idx]
        if self._kept is not None:
            key_states = torch.where(self._kept, keys[:, :, first:last], key_states)
            value_states = torch.where(self._kept, values[:, :, first:last], value_states)
        keys[:, :, first:last] = key_states
        values[:, :, first:last] = value_states
        return keys[:, :, self._low : last], values[:, :, self._low : last]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in view."""
        return self.end - self._low

    def decode_mask(self) -> Tensor:
        """Additive mask of one new token per row: [rows, 1, 1, columns in view]. Call it after `open_columns`."""
        return self._mask[: self._rows, :, :, self._low : self.end]

    def prefill_mask(self, written: Tensor) -> Tensor:
        """Additive mask of several new tokens per row: [rows, 1, queries, columns in view], of written: see above.

        A query that only pads attends to itself, so that no row of the attention matrix is empty.
        """
        device = self._data.device
        columns = torch.arange(self._low, self.end, device=device)
        queries = torch.arange(self._first, self.end, device=device)[:, None]
        starts = torch.tensor(self.starts[: self._rows], device=device)[:, None, None]
        seen = (columns >= starts) & (columns <= queries)
        seen = (seen & written[:, :, None]) | (columns == queries)
        return _additive(seen[:, None], self._data.dtype)

    def load(self, row: int, kv: Tensor) -> None:
        """Put [layers, 2, heads, n, dim] at the beginning of a row."""
        start = self.starts[row]
        self._data[:, :, row, :, start : start + kv.shape[3]] = kv

    def save(self, row: int) -> Tensor:
        """A copy of a row: [layers, 2, heads, n, dim]."""
        return self._data[:, :, row, :, self.starts[row] : self.end].clone()

    def repeat(self, sources: Sequence[int], first: int) -> None:
        """Rows from `first` on become copies of `sources`."""
        for row, source in enumerate(sources, start=first):
            self._data[:, :, row, :, : self.end] = self._data[:, :, source, :, : self.end]

    def keep(self, order: Sequence[int]) -> None:
        """Row i becomes what row order[i] was; order[i] >= i. Rows that stay where they are cost nothing."""
        for target, source in enumerate(order):
            if target != source:
                start = self.starts[source]
                self._data[:, :, target, :, start : self.end] = self._data[:, :, source, :, start : self.end]
        self.starts = [self.starts[source] for source in order]
        self._mask = self._mask[list(order)]
        self._select(len(order))

    def _select(self, rows: int) -> None:
        """Work on the first `rows` rows and on no column that is padding for all of them."""
        self._rows = rows
        self._low = min(self.starts[:rows])
        self._views = [(layer[0, :rows], layer[1, :rows]) for layer in self._data]

    def _grow(self, needed: int) -> None:
        columns = max(needed + GROWTH, needed + needed // 2)
        old = self._data[:, :, : len(self.starts), :, : self.end]
        self._data = old.new_empty((*old.shape[:4], columns, old.shape[5]))
        self._data[:, :, :, :, : self.end] = old
        self._mask = self._hide_padding()
        self._select(self._rows)

    def _hide_padding(self) -> Tensor:
        columns = torch.arange(self._data.shape[4], device=self._data.device)
        starts = torch.tensor(self.starts, device=self._data.device)
        return _additive((columns >= starts[:, None])[:, None, None], self._data.dtype)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, the most negative finite number elsewhere (minus infinity would make NaN of an empty row)."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


class SessionCache:
    """Keys and values of sessions between their turns, bounded by `limit` tokens; the least recently used goes first.

    `tokens` is what it holds now, `evicted` counts the sessions that had to make room.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.tokens = 0
        self.evicted = 0
        self._entries: OrderedDict[str, tuple[IntArray, Tensor]] = OrderedDict()

    def take(self, session: str, prompt: IntArray) -> Tensor | None:
        """Remove and return the session's keys and values as far as they belong to `prompt`.

        [layers, 2, heads, n, dim], or None when nothing fits. At least one token of the prompt is left out, because
        its logits are wanted.
        """
        entry = self._remove(session)
        if entry is None:
            return None
        ids, kv = entry
        length = min(len(ids), len(prompt) - 1)
        differs = np.flatnonzero(ids[:length] != prompt[:length])
        shared = int(differs[0]) if len(differs) else length
        return kv[:, :, :, :shared] if shared else None

    def put(self, session: str, ids: IntArray, kv: Tensor) -> None:
        """Keep the keys and values of `ids` for the session's next turn."""
        self.drop(session)
        self._entries[session] = (ids, kv)
        self.tokens += len(ids)
        while self.tokens > self.limit:
            self._remove(next(iter(self._entries)))
            self.evicted += 1

    def drop(self, session: str) -> None:
        """Forget a session; nothing happens if it is unknown."""
        self._remove(session)

    def clear(self) -> None:
        self._entries.clear()
        self.tokens = 0

    def _remove(self, session: str) -> tuple[IntArray, Tensor] | None:
        entry = self._entries.pop(session, None)
        if entry is not None:
            self.tokens -= len(entry[0])
        return entry
