"""Aggregation against loops over trajectories, and the property it exists for: micro-batches add up."""

from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plugym.functional import AggregationMode, aggregate, trajectory_means

MODES: tuple[AggregationMode, ...] = get_args(AggregationMode)
NORM = 7

trajectories = st.lists(st.lists(st.floats(-5, 5), max_size=6), min_size=1, max_size=8).filter(any)


def _share(rows: list[list[float]], mode: AggregationMode, total_tokens: int, total_trajs: int) -> torch.Tensor:
    losses = torch.tensor([x for row in rows for x in row], dtype=torch.float64, requires_grad=True)
    index = torch.tensor([i for i, row in enumerate(rows) for _ in row], dtype=torch.long)
    counts = torch.tensor([len(row) for row in rows])
    return aggregate(losses, mode, index, counts, total_tokens, total_trajs, norm_length=NORM)


def _by_loop(rows: list[list[float]], mode: AggregationMode) -> float:
    if mode == "token-mean":
        return sum(x for row in rows for x in row) / sum(len(row) for row in rows)
    per_trajectory = []
    for row in rows:
        total = 0.0
        for loss in row:
            total += loss
        if mode == "seq-mean-token-mean":
            total = total / len(row) if row else 0.0
        if mode == "seq-mean-token-sum-norm":
            total /= NORM
        per_trajectory.append(total)
    return sum(per_trajectory) / len(rows)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 0.666667),
        ("seq-mean-token-mean", 0.75),
        ("seq-mean-token-sum", 2.0),
        ("seq-mean-token-sum-norm", 2.0 / NORM),
    ],
)
def test_published_vector(mode: AggregationMode, expected: float) -> None:
    rows = [[1.0, 1.0], [0.5] * 4]
    assert _share(rows, mode, 6, 2).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("mode", MODES)
@given(rows=trajectories)
def test_against_a_loop(mode: AggregationMode, rows: list[list[float]]) -> None:
    tokens = sum(map(len, rows))
    assert _share(rows, mode, tokens, len(rows)).item() == pytest.approx(_by_loop(rows, mode), abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
@given(rows=trajectories, cuts=st.sets(st.integers(1, 7)))
def test_micro_batches_add_up_to_the_mini_batch(mode: AggregationMode, rows, cuts: set[int]) -> None:
    """However the trajectories are split, a part without any trained token included."""
    tokens = sum(map(len, rows))
    bounds = [0, *sorted(cut for cut in cuts if cut < len(rows)), len(rows)]
    parts = [rows[start:end] for start, end in pairwise(bounds)]
    shares = sum(_share(part, mode, tokens, len(rows)).item() for part in parts)
    assert shares == pytest.approx(_share(rows, mode, tokens, len(rows)).item(), abs=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_order_of_tokens_does_not_matter(mode: AggregationMode) -> None:
    losses, index = torch.tensor([1.0, 2.0, 4.0, 8.0]), torch.tensor([0, 1, 1, 1])
    counts, order = torch.tensor([1, 3]), [3, 0, 2, 1]
    straight = aggregate(losses, mode, index, counts, 4, 2, norm_length=NORM)
    shuffled = aggregate(losses[order], mode, index[order], counts, 4, 2, norm_length=NORM)
    assert shuffled.item() == pytest.approx(straight.item())


def test_a_micro_batch_without_tokens_is_a_differentiable_zero() -> None:
    empty = torch.zeros(0, requires_grad=True)
    for mode in MODES:
        loss = aggregate(empty, mode, torch.zeros(0, dtype=torch.long), torch.tensor([0]), 5, 2, norm_length=NORM)
        loss.backward()
        assert loss.item() == 0.0


def test_trajectory_means_are_differentiable() -> None:
    values = torch.tensor([1.0, 2.0, 6.0], requires_grad=True)
    means = trajectory_means(values, torch.tensor([1, 0, 1]), torch.tensor([1, 2, 0]))
    assert means.tolist() == [2.0, 3.5, 0.0]
    means.sum().backward()
    assert values.grad.tolist() == [0.5, 1.0, 0.5]


def test_bad_arguments() -> None:
    losses, index, counts = torch.ones(2), torch.zeros(2, dtype=torch.long), torch.tensor([2])
    with pytest.raises(
        ValueError,
        match="unknown aggregation mode 'mean'; valid: token-mean, seq-mean-token-mean, seq-mean-token-sum, "
        "seq-mean-token-sum-norm",
    ):
        aggregate(losses, "mean", index, counts, 2, 1)
    with pytest.raises(ValueError, match="needs norm_length"):
        aggregate(losses, "seq-mean-token-sum-norm", index, counts, 2, 1)
    with pytest.raises(ValueError, match="0 trained tokens in 1 trajectories: mini-batch has no loss"):
        aggregate(losses[:0], "token-mean", index[:0], counts, 0, 1)
    with pytest.raises(ValueError, match="one entry per token"):
        aggregate(torch.ones(1, 2), "token-mean", index, counts, 2, 1)
