"""A source that is not an env loop: groups of one without a task, whose rewards arrive later by trajectory id."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from builders import trajectory

from plugym.algorithm import Advantage, Algorithm, Aux, LossOutput, TokenBatch, counted_trajectories, spread
from plugym.metrics import batch_metrics
from plugym.reward import RewardProvider, Score
from plugym.scoring import score_group
from plugym.source import TrajectorySource
from plugym.trajectory import Group, ScoredGroup


class Gateway(TrajectorySource):
    """Hands out what an agent's own model calls left behind."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.taken = 0
        self.version = 0

    async def groups(self) -> AsyncIterator[Group]:
        while self.taken < self.n:
            name = f"call-{self.taken}"
            self.taken += 1
            yield Group(name, None, (trajectory(name, level="tokens"),), source="gateway")

    def set_version(self, version: int) -> None:
        self.version = version


class Late(RewardProvider):
    """Awaits a number posted by trajectory id; what has not come by the deadline is unscored."""

    range = (0.0, 1.0)

    def __init__(self, deadline: float) -> None:
        super().__init__()
        self.deadline = deadline
        self._posted: dict[str, asyncio.Future[float]] = {}

    def _slot(self, trajectory_id: str) -> asyncio.Future[float]:
        return self._posted.setdefault(trajectory_id, asyncio.get_running_loop().create_future())

    def post(self, trajectory_id: str, value: float) -> None:
        self._slot(trajectory_id).set_result(value)

    async def score(self, group: Group) -> list[Score]:
        return [await self._wait(t.id) for t in group.trajectories]

    async def _wait(self, trajectory_id: str) -> Score:
        try:
            return Score(await asyncio.wait_for(self._slot(trajectory_id), self.deadline))
        except TimeoutError:
            return Score.unscored(f"no reward within {self.deadline:g} s")


class RunningBaseline(Algorithm):
    """The advantage of a group of one is its distance to a running mean, kept with the checkpoint."""

    trains_singletons = True
    mean = 0.0

    def advantages(self, batch: Sequence[ScoredGroup], aux: Aux) -> list[Advantage]:
        out = []
        for group in batch:
            for _, episode, value in group.counted():
                out.append(spread(episode, value - self.mean))
                self.mean += 0.5 * (value - self.mean)
        return out

    def loss(self, batch: TokenBatch) -> LossOutput:
        raise NotImplementedError

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean}

    def load_state_dict(self, state: object) -> None:
        assert isinstance(state, dict)
        self.mean = state["mean"]


async def _scored() -> list[ScoredGroup]:
    """Three groups, scored concurrently: the rewards arrive in reverse, one early, one never."""
    source, provider = Gateway(3), Late(deadline=0.3)
    provider.post("call-1", 0.25)
    jobs = [asyncio.create_task(score_group("late", provider, group)) async for group in source.groups()]
    await asyncio.sleep(0.01)
    assert [job.done() for job in jobs] == [False, True, False], "the others do not wait for the slow ones"
    provider.post("call-2", 1.0)
    scored = await asyncio.gather(*jobs)
    assert source.taken == 3
    return list(scored)


def test_rewards_arrive_late_early_or_never() -> None:
    scored = asyncio.run(_scored())
    assert [group.scores[0].value for group in scored] == [None, 0.25, 1.0]
    assert scored[0].scores[0].why == "no reward within 0.3 s"
    assert batch_metrics(scored)["reward/unscored"] == 1


def test_nothing_downstream_needs_a_task_or_company() -> None:
    scored = asyncio.run(_scored())
    assert all(group.group.task is None and len(group.group.trajectories) == 1 for group in scored)
    algorithm = RunningBaseline()
    kept = [group for group in scored if algorithm.keep(group)]
    assert [group.group.id for group in kept] == ["call-1", "call-2"]
    advantages = algorithm.advantages(kept, Aux())
    assert [a.streams[0].max() for a in advantages] == [0.25, 0.875]
    assert [t.id for t in counted_trajectories(kept)] == ["call-1", "call-2"]

    resumed = RunningBaseline()
    resumed.load_state_dict(algorithm.state_dict())
    assert resumed.mean == pytest.approx(0.5625)


def test_a_source_has_defaults_for_what_it_does_not_need() -> None:
    class Recorded(TrajectorySource):
        def groups(self) -> AsyncIterator[Group]:
            raise NotImplementedError

    source = Recorded()
    assert source.state_dict() == {}
    source.load_state_dict({})
    source.set_version(3)
    asyncio.run(source.close())
