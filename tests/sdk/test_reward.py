"""`@reward`: a plain function as a provider. Composites, collisions and judges: tests/sdk/scenarios."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from builders import failed, group, trajectory

from plugym.errors import RewardError
from plugym.reward import RewardConfig, RewardProvider, Score, check_scores, reward
from plugym.scoring import score_group
from plugym.trajectory import Trajectory


def scores(provider: RewardProvider, *trajectories: Trajectory) -> tuple[Score, ...]:
    return asyncio.run(score_group("r", provider, group(*trajectories))).scores


@pytest.mark.parametrize(
    ("result", "value", "correct"),
    [
        (0.5, 0.5, None),
        (1, 1.0, None),
        (True, 1.0, True),
        (np.bool_(False), 0.0, False),
        (np.float32(0.5), 0.5, None),
        (None, None, None),
        (Score(0.25, correct=True), 0.25, True),
    ],
)
def test_what_a_function_may_return(result: Any, value: float | None, correct: bool | None) -> None:
    (score,) = scores(reward(lambda trajectory: result)(), trajectory("a"))
    assert (score.value, score.correct) == (value, correct)


def test_a_function_becomes_a_plugin_class_of_its_own_name() -> None:
    @reward(range=(0, 1))
    async def brevity(trajectory: Trajectory) -> float:
        """Short is good."""
        await asyncio.sleep(0)
        return 1.0 if len(trajectory.final_text) < 3 else 0.0

    assert (brevity.__name__, brevity.__doc__, brevity.range) == ("brevity", "Short is good.", (0, 1))
    assert brevity.Config is RewardConfig
    values = [s.value for s in scores(brevity(RewardConfig()), trajectory("a", "x"), trajectory("b", "long"))]
    assert values == [1.0, 0.0]


def test_an_infra_failure_is_never_shown_to_the_function() -> None:
    seen: list[str] = []

    @reward
    def watch(trajectory: Trajectory) -> float:
        seen.append(trajectory.id)
        return 1.0

    assert [score.value for score in scores(watch(), trajectory("a"), failed("b"))] == [1.0, None]
    assert seen == ["a"]


def test_an_open_range_has_no_bound_on_that_side() -> None:
    provider = reward(range=(None, 0))(lambda trajectory: 0.0)()
    answers = group(trajectory("a"))
    for value in (-1e9, 0):
        assert check_scores("r", provider, answers, [Score(value)])[0].value == value
    with pytest.raises(RewardError, match=r"outside its range \[None, 0\]"):
        check_scores("r", provider, answers, [Score(0.1)])
