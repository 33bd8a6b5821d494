"""Rows and rectangles: every trained token is predicted from exactly its own context."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.errors import BadInput
from plugym.message import ImagePart
from plugym.trajectory import TokenStream, stream_of
from plugym_runners.local.packing import LEAST_FILL, LONGEST_SHARED_ROW, check_trainable, lay_out, sharing_pays

token = st.integers(0, 2)
tokens = st.lists(token, min_size=1, max_size=4)
turns = st.lists(st.tuples(tokens, st.lists(token, max_size=3)), min_size=1, max_size=3)


def build(parts: list[tuple[list[int], list[int]]]) -> TokenStream:
    return stream_of([(prompt, sampled, [-1.0] * len(sampled)) for prompt, sampled in parts])


@given(st.lists(turns, max_size=6), st.booleans())
def test_every_token_has_its_own_context(episodes: list[list[tuple[list[int], list[int]]]], share: bool) -> None:
    streams = [build(parts) for parts in episodes]
    expected = [
        (stream.ids[:position].tolist(), list(range(position))) for stream in streams for position in stream.positions
    ]
    seen: dict[int, tuple[list[int], list[int]]] = {}
    for layout in lay_out(streams, hidden_size=64, share=share):
        width = layout.ids.shape[1]
        for flat, index in zip(layout.source, layout.order, strict=True):
            row, column = divmod(int(flat), width)
            visible = np.arange(width) <= column
            if layout.segments is not None:
                segments = layout.segments[row]
                visible &= (segments == segments[column]) | (segments == 0)
            assert int(index) not in seen
            seen[int(index)] = (layout.ids[row, visible].tolist(), layout.positions[row, visible].tolist())
    assert [seen[i] for i in range(len(seen))] == expected


def test_a_shared_prompt_stands_once() -> None:
    streams = [stream_of([([7, 8, 9], [i, i, i], [-1.0] * 3)]) for i in range(4)]
    (shared,) = lay_out(streams, hidden_size=64, share=True)
    assert shared.ids.tolist() == [[7, 8, 9, 0, 0, 1, 1, 2, 2, 3, 3]]
    assert shared.positions.tolist() == [[0, 1, 2, 3, 4, 3, 4, 3, 4, 3, 4]]
    (plain,) = lay_out(streams, hidden_size=64, share=False)
    assert plain.ids.shape == (4, 5)
    assert plain.segments is None


def test_prompts_that_only_begin_alike_are_not_shared() -> None:
    streams = [stream_of([([7, 8], [1], [-1.0])]), stream_of([([7, 8, 9], [1], [-1.0])])]
    assert all(layout.segments is None for layout in lay_out(streams, hidden_size=64, share=True))


def test_a_shared_row_has_a_longest_length() -> None:
    pays = sharing_pays(hidden_size=10**6)
    assert pays(LONGEST_SHARED_ROW - 10, 500, 10)
    assert not pays(LONGEST_SHARED_ROW - 10, 500, 11)


def test_short_rows_do_not_pay_for_long_ones() -> None:
    streams = [stream_of([([1], [2] * n, [-1.0] * n)]) for n in (100, 90, 40, 10, 9)]
    layouts = lay_out(streams, hidden_size=64, share=False)
    assert [layout.ids.shape for layout in layouts] == [(2, 100), (1, 40), (2, 10)]
    assert LEAST_FILL == 0.75


def test_streams_without_trained_tokens_are_left_out() -> None:
    assert lay_out([stream_of([([1, 2, 3], [], [])])], hidden_size=64, share=True) == []


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (stream_of([([], [1, 2], [-1.0, -1.0])]), "trains its first token"),
        (stream_of([([1], [99], [-1.0])]), r"outside \[0, 10\)"),
        (stream_of([([-1], [2], [-1.0])]), r"outside \[0, 10\)"),
        (stream_of([([1], [2], [-1.0])], trainable=False), "no token ids"),
        (stream_of([([1], [2], [-1.0])], media=(ImagePart(b"x", "image/png"),)), "images"),
    ],
)
def test_bad_streams_are_refused(stream: TokenStream, message: str) -> None:
    good = stream_of([([1], [2], [-1.0])])
    with pytest.raises(BadInput, match=f"token stream 1 of episode .*{message}"):
        check_trainable([good, stream], vocabulary=10, owner="episode")
