"""The value loss against its cases."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plugym.functional import value_loss

number = st.floats(-3, 3)


@given(st.lists(st.tuples(number, number, number), min_size=1, max_size=20))
def test_clipped_value_loss_against_a_loop(rows: list[tuple[float, float, float]]) -> None:
    values, old, returns = torch.tensor(rows, dtype=torch.float64).T
    expected = []
    for value, before, target in rows:
        clipped = min(max(value, before - 0.2), before + 0.2)
        expected.append(0.5 * max((value - target) ** 2, (clipped - target) ** 2))
    assert value_loss(values, old, returns, clip=0.2).tolist() == pytest.approx(expected, abs=1e-9)
    unclipped = [0.5 * (value - target) ** 2 for value, _, target in rows]
    assert value_loss(values, old, returns).tolist() == pytest.approx(unclipped, abs=1e-9)


def test_the_gradient_stops_where_the_value_has_moved_far_enough_towards_its_target() -> None:
    values = torch.tensor([0.5, 0.1, -0.5], requires_grad=True)
    value_loss(values, torch.zeros(3), torch.ones(3), clip=0.2).sum().backward()
    assert values.grad.tolist() == pytest.approx([0.0, -0.9, -1.5])


def test_clip_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"clip=0\.0 must be above 0; use None"):
        value_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), clip=0.0)
