"""The rollout driver: the trajectory source that plays episodes of an environment against an engine.

Tasks go in, finished groups stream out. Infrastructure failures are retried with back-off within a bound; what still
fails stays in its group as `infra_failed`. When everything fails in the same way the run is stopped, because more of
the same would only cost time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from plugym.config import RolloutSettings
from plugym.engine import Engine, Sampling
from plugym.env import AgentEnv, AnyEnv
from plugym.errors import Failure, InfraError, InfraKind, RunStopped, boundary
from plugym.rollout.episode import Plan, Player, derive_seed, play
from plugym.rollout.handles import EnvFactory, EnvPool
from plugym.rollout.parsers import Parser
from plugym.source import TrajectorySource
from plugym.task import Task, Taskset
from plugym.trajectory import Group, Purpose, StopReason, Trajectory


class FailureWatch:
    """Stops a run whose episodes all fail alike: the first `limit` ones, or more than `share` of one pull."""

    def __init__(self, limit: int, share: float) -> None:
        self._limit = limit
        self._share = share
        self._seen = 0
        self._first: Counter[str] = Counter()

    def episode(self, trajectory: Trajectory) -> None:
        """Raises `RunStopped` when the first `limit` episodes of the run failed with the same error."""
        if self._seen >= self._limit:
            return
        self._seen += 1
        if trajectory.failure is not None:
            self._first[trajectory.failure.fingerprint] += 1
            if self._first[trajectory.failure.fingerprint] == self._limit:
                raise RunStopped(f"the first {self._limit} episodes all failed: {_describe(trajectory)}")

    def pull(self, trajectories: Sequence[Trajectory]) -> None:
        """Raises `RunStopped` when more than the share of these failed with the same error."""
        failed = [trajectory for trajectory in trajectories if trajectory.failure is not None]
        counts = Counter(t.failure.fingerprint for t in failed if t.failure is not None)
        for fingerprint, count in counts.most_common(1):
            if count > self._share * len(trajectories):
                example = next(t for t in failed if t.failure is not None and t.failure.fingerprint == fingerprint)
                raise RunStopped(f"{count} of {len(trajectories)} episodes failed alike: {_describe(example)}")


def _describe(trajectory: Trajectory) -> str:
    failure = trajectory.failure
    if failure is None:
        return ""
    return f"[{failure.kind}] {failure.message}" + (f" ({failure.where})" if failure.where else "")


class RolloutDriver(TrajectorySource):
    """Plays `group_size` episodes of each task.

    `groups()` starts `tasks_per_step` tasks when the consumer asks and nothing is left over, never earlier, so that
    every episode is played by the weights of its step. `position` is the number of tasks taken so far. All randomness
    is keyed by (seed, task id, visit, sample, turn).
    """

    def __init__(
        self,
        *,
        engine: Engine,
        env: EnvFactory,
        taskset: Taskset,
        settings: RolloutSettings,
        parser: Parser,
        seed: int = 0,
        position: int = 0,
    ) -> None:
        self.engine = engine
        self.taskset = taskset
        self.settings = settings
        self.position = position
        self.version = 0
        self._seed = seed
        self._watch = FailureWatch(settings.same_failure_limit, settings.same_failure_share)
        probe: AnyEnv = env()
        self._pool = EnvPool(env, probe.isolation if isinstance(probe, AgentEnv) else "inline")
        self._player = Player(
            engine=engine,
            tools=tuple(probe.tools()),
            parser=parser,
            settings=settings,
            sampling=Sampling(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k),
        )

    async def groups(self) -> AsyncIterator[Group]:
        while True:
            tasks = self.taskset.window(self.position, self.settings.tasks_per_step)
            visit = self.position
            self.position += len(tasks)
            async for group in self.play(tasks, self.settings.group_size, visit=visit):
                yield group

    async def play(
        self,
        tasks: Sequence[Task],
        n: int,
        *,
        sampling: Sampling | None = None,
        purpose: Purpose = Purpose.TRAIN,
        visit: int = 0,
    ) -> AsyncIterator[Group]:
        """Play `n` episodes of each task; groups come as they finish. Group ids are
        `<purpose>:<position>:<task id>`, so that sorting by id gives the order of the tasks."""
        player = self._player if sampling is None else dataclasses.replace(self._player, sampling=sampling)
        plans = [self._plans(task, visit + i, n, purpose) for i, task in enumerate(tasks)]
        gate = asyncio.Semaphore(self.settings.max_concurrent)
        total = n * len(tasks)
        if total <= self.settings.max_concurrent:
            # Everybody plays at once, so the engine may wait for all of them before it forms its first batch.
            player.engine.announce([plan.id for group in plans for plan in group])
        jobs = [asyncio.create_task(self._group(player, group, gate, total)) for group in plans]
        done: list[Trajectory] = []
        try:
            for job in asyncio.as_completed(jobs):
                trajectories = await job
                done.extend(trajectories)
                task = trajectories[0].task
                yield Group(trajectories[0].group_id, task, trajectories, "rollout", purpose)
            self._watch.pull(done)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    def _plans(self, task: Task, position: int, n: int, purpose: Purpose) -> list[Plan]:
        group_id = f"{purpose}:{position:06d}:{task.id}"
        seed = derive_seed(self._seed, purpose, task.id, task.revision, position)
        return [Plan(task, group_id, sample, seed) for sample in range(n)]

    async def _group(
        self, player: Player, plans: Sequence[Plan], gate: asyncio.Semaphore, total: int
    ) -> tuple[Trajectory, ...]:
        episodes = [asyncio.create_task(self._episode(player, plan, gate, total)) for plan in plans]
        try:
            return tuple(await asyncio.gather(*episodes))
        finally:
            for episode in episodes:
                episode.cancel()

    async def _episode(self, player: Player, plan: Plan, gate: asyncio.Semaphore, total: int) -> Trajectory:
        """One episode with its retries."""
        async with gate:
            announced = total <= self.settings.max_concurrent
            for attempt in range(self.settings.retries + 1):
                if attempt or not announced:
                    player.engine.announce([plan.id])
                trajectory = await self._once(player, plan)
                failure = trajectory.failure
                if failure is None or not failure.retryable or attempt == self.settings.retries:
                    break
                await asyncio.sleep(self.settings.backoff * 2**attempt)
            counts = {**trajectory.counts, "retries": float(attempt)}
            trajectory = dataclasses.replace(trajectory, counts=counts)
            self._watch.episode(trajectory)
            return trajectory

    async def _once(self, player: Player, plan: Plan) -> Trajectory:
        env = self._pool.take()
        broken = True
        try:
            trajectory = await play(player, env, plan)
            broken = trajectory.failure is not None
            return trajectory
        finally:
            self._pool.give_back(env, broken=broken)

    def set_version(self, version: int) -> None:
        self.version = version

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = int(state["position"])

    async def close(self) -> None:
        await self._pool.close()
