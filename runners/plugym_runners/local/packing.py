"""How token streams are laid out for a forward pass: rows in which a prompt that several streams share stands once.

Pure arithmetic on arrays: no model here, no tensors. A row is `prompt | tail | tail ...`; a tail attends to the prompt
and to itself, at the positions it has in its own stream, so each of its tokens is computed from exactly its own context
(the tree attention of speculative decoding, SpecInfer, arXiv 2305.09781, section 4). The samples of a group start from
one prompt, which is then computed once instead of once per sample.

Nothing behind the last trained token is laid out, and not that token itself: the hidden state that predicts it stands
one column before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from plugym.errors import BadInput
from plugym.trajectory import IntArray, TokenStream

LONGEST_SHARED_ROW = 4096
"""Tokens. A shared row needs a mask of its length squared: 16 MB here."""

LEAST_FILL = 0.75
"""Rows shorter than this share of the longest go into a forward pass of their own."""


@dataclass(slots=True)
class Row:
    """One row: `ids`, `positions` and `segments` have one entry per column; segment 0 is the prompt, k the k-th tail.

    `columns[i]` is where the hidden state stands that predicts the trained token `order[i]` of the whole call.
    """

    ids: list[IntArray] = field(default_factory=list)
    positions: list[IntArray] = field(default_factory=list)
    segments: list[IntArray] = field(default_factory=list)
    columns: list[IntArray] = field(default_factory=list)
    order: list[IntArray] = field(default_factory=list)
    length: int = 0
    tails: int = 0

    def append(self, ids: IntArray, start: int, segment: int) -> None:
        """Put `ids` behind what is there; they stand at `start`, `start + 1`, ... of their stream."""
        self.ids.append(ids)
        self.positions.append(np.arange(start, start + len(ids)))
        self.segments.append(np.full(len(ids), segment))
        self.length += len(ids)


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows of similar length, padded on the right to one rectangle [n, L].

    ids, positions: int64[n, L]. segments: int64[n, L], or None when no row holds more than one stream: then an ordinary
    causal model does, without any mask, because a column never looks to its right, where the padding is. source:
    int64[m], columns in the flattened rectangle. order: int64[m], the trained tokens they predict.
    """

    ids: IntArray
    positions: IntArray
    segments: IntArray | None
    source: IntArray
    order: IntArray


def check_trainable(streams: Sequence[TokenStream], vocabulary: int, owner: str = "") -> None:
    """Raise `BadInput` for a stream whose log-probs cannot be computed; `owner` says whose streams they are."""
    for number, stream in enumerate(streams):
        if not stream.trainable:
            problem = "has no token ids from its engine: use an engine of level 'tokens'"
        elif stream.media:
            problem = "holds images: this learner reads text only"
        elif len(stream) and stream.loss_mask[0]:
            problem = "trains its first token, which nothing predicts: give it at least one prompt token"
        elif len(stream) and not 0 <= stream.ids.min() <= stream.ids.max() < vocabulary:
            problem = f"has token ids outside [0, {vocabulary}): it was sampled with another model's tokenizer"
        else:
            continue
        raise BadInput(f"token stream {number}{f' of {owner}' if owner else ''} {problem}")


def lay_out(streams: Sequence[TokenStream], hidden_size: int, *, share: bool) -> list[Layout]:
    """Every stream with trained tokens in exactly one row; rows of similar length together, longest first.

    `hidden_size` decides when a longer row is worth its attention; `share=False` gives every stream its own row.
    """
    pays = sharing_pays(hidden_size) if share else None
    rows = sorted(_rows(streams, pays), key=lambda row: -row.length)
    layouts: list[Layout] = []
    start = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or rows[end].length < LEAST_FILL * rows[start].length:
            layouts.append(_rectangle(rows[start:end]))
            start = end
    return layouts


Pays = Callable[[int, int, int], bool]


def sharing_pays(hidden_size: int) -> Pays:
    """Whether a tail is cheaper behind a row of `length` columns than in a row of its own behind `prompt` columns.

    Per layer and token a transformer spends about 24 h^2 operations on its matrices and 4 h per column attended to
    (Kaplan et al. 2020, arXiv 2001.08361, table 1, at d_ff = 4 h), so attention to L columns costs L / 6h tokens. A
    masked kernel computes the whole square of a row, a causal one half of it.

    >>> pays = sharing_pays(hidden_size=576)
    >>> pays(35, 35, 12), pays(4000, 10, 500)
    (True, False)
    """

    def pays(length: int, prompt: int, tail: int) -> bool:
        if length + tail > LONGEST_SHARED_ROW:
            return False
        own = prompt + tail
        shared_cost = tail * (1 + (2 * length + tail) / (6 * hidden_size))
        own_cost = own * (1 + own / (12 * hidden_size))
        return shared_cost < own_cost

    return pays


def _rows(streams: Sequence[TokenStream], pays: Pays | None) -> list[Row]:
    """Fill rows with the streams that have trained tokens, in order."""
    rows: list[Row] = []
    latest: dict[bytes, Row] = {}
    done = 0
    for stream in streams:
        trained = stream.positions
        if not len(trained):
            continue
        prompt, end = int(trained[0]), int(trained[-1])
        key = stream.ids[:prompt].tobytes()
        row = latest.get(key)
        if row is None or pays is None or not pays(row.length, prompt, end - prompt):
            row = Row()
            row.append(stream.ids[:prompt], 0, 0)
            latest[key] = row
            rows.append(row)
        # The column of stream position q: q itself in the prompt, shifted behind it.
        predictors, shift = trained - 1, row.length - prompt
        row.tails += 1
        row.append(stream.ids[prompt:end], prompt, row.tails)
        row.columns.append(np.where(predictors < prompt, predictors, predictors + shift))
        row.order.append(np.arange(done, done + len(trained)))
        done += len(trained)
    return rows


def _rectangle(rows: Sequence[Row]) -> Layout:
    width = max(row.length for row in rows)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    segments = np.full((len(rows), width), -1, dtype=np.int64)
    # Padding goes on counting, so that positions are consecutive in rows of one stream.
    positions = np.tile(np.arange(width, dtype=np.int64), (len(rows), 1))
    for i, row in enumerate(rows):
        ids[i, : row.length] = np.concatenate(row.ids)
        segments[i, : row.length] = np.concatenate(row.segments)
        positions[i, : row.length] = np.concatenate(row.positions)
    source = [column + i * width for i, row in enumerate(rows) for column in row.columns]
    return Layout(
        ids,
        positions,
        segments if any(row.tails > 1 for row in rows) else None,
        np.concatenate(source),
        np.concatenate([order for row in rows for order in row.order]),
    )
