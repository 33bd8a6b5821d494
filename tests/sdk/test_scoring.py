"""Scoring by a run: groups side by side, and what ends a run against what leaves a group unscored."""

from __future__ import annotations

import asyncio
import logging

import pytest
from builders import group, trajectory

from plugym.errors import BadInput, RewardError
from plugym.reward import RewardProvider, Score
from plugym.scoring import score_group
from plugym.trajectory import Group


class Raises(RewardProvider):
    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def score(self, group: Group) -> list[Score]:
        raise self.error


def test_groups_are_scored_side_by_side() -> None:
    barrier = asyncio.Barrier(3)

    class Meets(RewardProvider):
        async def score(self, group: Group) -> list[Score]:
            await asyncio.wait_for(barrier.wait(), 5)
            return [Score(1.0)]

    async def main() -> list[float]:
        provider = Meets()
        jobs = [score_group("r", provider, group(trajectory(str(i)), name=str(i))) for i in range(3)]
        return [float(scored.values()[0]) for scored in await asyncio.gather(*jobs)]

    assert asyncio.run(main()) == [1.0, 1.0, 1.0]


def test_what_cannot_be_reached_is_logged_and_unscored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "plugym.scoring"):
        scored = asyncio.run(score_group("r", Raises(TimeoutError("slow")), group(trajectory("a"), name="g7")))
    assert scored.scores[0].value is None
    assert "group g7 is unscored: reward 'r': TimeoutError: slow" in caplog.text


@pytest.mark.parametrize("error", [RewardError("broken"), BadInput("no key"), asyncio.CancelledError()])
def test_what_ends_a_run_goes_through(error: BaseException) -> None:
    with pytest.raises(type(error)):
        asyncio.run(score_group("r", Raises(error), group(trajectory("a"))))


def test_a_mistake_in_the_code_of_a_reward_ends_the_run() -> None:
    with pytest.raises(RewardError):
        asyncio.run(score_group("r", Raises(TypeError("a mistake in the code")), group(trajectory("a"))))
