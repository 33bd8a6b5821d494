"""The plans of the token loop, as pure functions."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from plugym_runners.local.decoding import PREFILL_TOKENS, arrange, close_ranks, common_beginning, segments


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=40))
def test_segments_cover_each_new_token_exactly_once(lengths: list[int]) -> None:
    new = sorted(lengths, reverse=True)
    covered = [0] * len(new)
    column = 0
    for first, last, rows in segments(new):
        assert first == column < last
        assert (last - first) * rows <= max(PREFILL_TOKENS, rows) + PREFILL_TOKENS
        for row in range(rows):
            covered[row] += last - max(first, new[0] - new[row])
            assert last > new[0] - new[row], "a row without a token in its segment"
        column = last
    assert covered == new
    assert rows == len(new)


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_ranks_close_with_as_few_moves_as_possible(case: tuple[int, set[int]]) -> None:
    rows, ended = case
    order = close_ranks(rows, ended)
    assert sorted(order) == [row for row in range(rows) if row not in ended]
    assert all(source >= place for place, source in enumerate(order))
    assert sum(source != place for place, source in enumerate(order)) <= len(ended)


def test_equal_prompts_are_read_once_unless_their_pasts_differ() -> None:
    a, b = np.array([1, 2, 3]), np.array([1, 2, 3, 4])
    past = torch.zeros(1, 2, 1, 2, 1)
    leaders, followers, new = arrange([a, b, a, b, a], [None, None, None, past, None])
    assert leaders == [1, 0, 3]
    assert followers == [(2, 1), (4, 1)]
    assert new == [4, 3, 2]


def test_common_beginning_leaves_a_token_to_each() -> None:
    assert common_beginning([]) == 0
    assert common_beginning([np.array([1, 2, 3]), np.array([1, 2])]) == 1
    assert common_beginning([np.array([1, 2, 3]), np.array([1, 5, 3])]) == 1
    assert common_beginning([np.array([4, 2]), np.array([1, 5])]) == 0
