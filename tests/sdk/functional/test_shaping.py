"""Reward terms against the tables of the papers they come from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.functional import (
    group_advantages,
    overlong_penalty,
    step_rewards,
    tool_shaped_reward,
    vote_rewards,
)


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0), (16000, 0), (16384, 0), (17408, -0.25), (18432, -0.5), (20480, -1.0), (99999, -1.0)],
)
def test_overlong_penalty_of_the_published_limits(length: int, penalty: float) -> None:
    assert overlong_penalty(length, max_length=20480, cache_length=4096) == penalty
    assert overlong_penalty(length, max_length=20480, cache_length=4096, factor=0.5) == 0.5 * penalty


@given(st.integers(0, 300), st.integers(1, 100), st.floats(0, 3))
def test_overlong_penalty_falls_and_stays_in_range(length: int, cache: int, factor: float) -> None:
    here = overlong_penalty(length, 100, cache, factor)
    assert -factor <= overlong_penalty(length + 1, 100, cache, factor) <= here <= 0.0
    assert str(overlong_penalty(0, 100, cache, factor)) == "0.0"


def test_wrong_answers_are_paid_for_executed_tool_calls() -> None:
    wrong = [tool_shaped_reward(False, calls) for calls in (0, 1, 2, 3, 4, 5, 8)]
    assert wrong == pytest.approx([-1.0, -0.9, -0.8, -0.7, -0.6, -0.6, -0.6])
    assert {tool_shaped_reward(True, calls) for calls in range(9)} == {1.0}


def test_tool_terms_are_settings() -> None:
    assert tool_shaped_reward(False, 3, bonus=0.2, cap=-0.5) == pytest.approx(-0.5)
    assert tool_shaped_reward(False, 2, bonus=0.2, cap=-0.5) == pytest.approx(-0.6)


@pytest.mark.parametrize(
    ("outcome", "votes", "reward", "raw", "advantages"),
    [
        (1, (1, 1, -1), 1.333333, None, [0.707107, 0.707107, -1.414214]),
        (-1, (1, -1, -1), -1.333333, None, [-1.414214, 0.707107, 0.707107]),
        (1, (1, None, -1), 1.0, [1, -2, -1], [1.336306, -1.069045, -0.267261]),
        (1, (-1, -1, -1), 0.0, [0, 0, 0], [0, 0, 0]),
        (1, (1, 1, 1), 2.0, [2, 2, 2], [0, 0, 0]),
    ],
)
def test_rlanything_vectors(outcome, votes, reward, raw, advantages) -> None:
    rewards = step_rewards(outcome, [votes])
    assert rewards == pytest.approx([reward], abs=1e-6)
    (samples,) = vote_rewards(rewards.tolist(), [votes])
    if raw is not None:
        assert samples.tolist() == raw
    assert group_advantages(samples, ddof=0, eps=0) == pytest.approx(advantages, abs=1e-6)


def test_steps_without_votes_have_the_outcome_alone() -> None:
    assert step_rewards(-1.0, [(), (1.0,), (None, None)], lam=0.5).tolist() == [-1.0, -0.5, -1.0]
    assert [samples.tolist() for samples in vote_rewards([-1.0], [()])] == [[]]
    assert step_rewards(1.0, []).tolist() == []


@given(st.lists(st.lists(st.sampled_from([1.0, -1.0, None]), min_size=1, max_size=5), max_size=5))
def test_step_rewards_against_a_loop(votes: list[list[float | None]]) -> None:
    for outcome in (1.0, -1.0):
        rewards = step_rewards(outcome, votes, lam=0.7)
        expected = []
        for step in votes:
            total = 0.0
            for vote in step:
                total += 0.0 if vote is None else vote
            expected.append(outcome + 0.7 / len(step) * total)
        assert rewards == pytest.approx(np.array(expected), abs=1e-12)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="cache_length=200 must be above 0 and at most max_length=100"):
        overlong_penalty(10, max_length=100, cache_length=200)
    with pytest.raises(ValueError, match="cache_length=0 must be above 0"):
        overlong_penalty(10, max_length=100, cache_length=0)
    with pytest.raises(ValueError, match="must not be negative"):
        overlong_penalty(-1, max_length=100, cache_length=10)
    with pytest.raises(ValueError, match="must not be negative"):
        overlong_penalty(1, max_length=100, cache_length=10, factor=-1)
    with pytest.raises(ValueError, match="executed_calls=-1 must not be negative"):
        tool_shaped_reward(False, -1)
    with pytest.raises(ValueError, match="1 step rewards but votes on 2 steps"):
        vote_rewards([1.0], [(1,), (1,)])
