"""The rollout driver: the trajectory source that plays episodes of an environment against an engine.

Tasks go in, finished groups stream out. Infrastructure failures are retried with back-off within a bound; what still
fails stays in its group as `infra_failed`. When everything fails in the same way the run is stopped, because more of
the same would only cost time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Collection, Container, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from plugym.config import RolloutSettings
from plugym.engine import Engine, Sampling
from plugym.env import AgentEnv, AnyEnv
from plugym.errors import Failure, InfraError, InfraKind, RunStopped, boundary
from plugym.rollout.episode import Plan, Player, derive_seed, play
from plugym.rollout.handles import AsyncHandle, EnvFactory, EnvPool
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


@dataclass(slots=True)
class _Pull:
    """One call of `play`: who plays, how many at once, and the announced episodes that have not begun."""

    player: Player
    gate: asyncio.Semaphore
    waiting: set[str]


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
        self._jobs: set[asyncio.Task[tuple[Trajectory, ...]]] = set()
        self._closed = False
        with boundary(InfraKind.ENV, "constructor"):
            probe: AnyEnv = env()
            tools = tuple(probe.tools())
        if isinstance(probe, AgentEnv):
            self._pool = EnvPool(env, probe.isolation)
            probe.close()  # it belongs to this thread, which is not where episodes are played
        else:
            self._pool = EnvPool(env, "inline")
            self._pool.give_back(AsyncHandle(probe), broken=False)
        self._player = Player(
            engine=engine,
            tools=tools,
            parser=parser,
            settings=settings,
            sampling=Sampling(temperature=settings.temperature, top_p=settings.top_p, top_k=settings.top_k),
        )

    async def groups(self) -> AsyncIterator[Group]:
        while not self._closed:
            tasks = self.taskset.window(self.position, self.settings.tasks_per_step)
            visit = self.position
            self.position += len(tasks)
            async with aclosing(self.play(tasks, self.settings.group_size, visit=visit)) as played:
                async for group in played:
                    yield group

    async def play(
        self,
        tasks: Sequence[Task],
        n: int,
        *,
        sampling: Sampling | None = None,
        purpose: Purpose = Purpose.TRAIN,
        visit: int = 0,
        skip: Container[str] = (),
    ) -> AsyncGenerator[Group, None]:
        """Play `n` episodes of each task; groups come as they finish. Group ids are
        `<purpose>:<position>:<task id>`, so that sorting by id gives the order of the tasks. Groups whose id is in
        `skip` are not played; the others keep their positions and seeds."""
        if self._closed:
            raise RuntimeError("the rollout driver is closed")
        player = self._player if sampling is None else dataclasses.replace(self._player, sampling=sampling)
        plans = [self._plans(task, visit + i, n, purpose) for i, task in enumerate(tasks)]
        plans = [group for group in plans if group[0].group_id not in skip]
        pull = _Pull(player, asyncio.Semaphore(self.settings.max_concurrent), set())
        ids = [plan.id for group in plans for plan in group]
        if len(ids) <= self.settings.max_concurrent:
            # Everybody plays at once, so the engine may wait for all of them before it forms its first batch.
            player.engine.announce(ids)
            pull.waiting.update(ids)
        jobs = [asyncio.create_task(self._group(pull, group)) for group in plans]
        self._jobs.update(jobs)
        done: list[Trajectory] = []
        try:
            for job in asyncio.as_completed(jobs):
                trajectories = await self._finished(job)
                if trajectories is None:
                    return
                done.extend(trajectories)
                if len(done) == len(ids):
                    self._watch.pull(done)  # before the last group goes out: its receiver may never ask for more
                yield Group(trajectories[0].group_id, trajectories[0].task, trajectories, "rollout", purpose)
        finally:
            await _cancel(jobs)
            self._jobs.difference_update(jobs)
            for episode in pull.waiting:
                player.engine.end_session(episode)

    async def _finished(self, job: Awaitable[tuple[Trajectory, ...]]) -> tuple[Trajectory, ...] | None:
        """The episodes of a group; None when `close` cancelled them."""
        try:
            return await job
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if self._closed and me is not None and not me.cancelling():
                return None
            raise

    def _plans(self, task: Task, position: int, n: int, purpose: Purpose) -> list[Plan]:
        group_id = f"{purpose}:{position:06d}:{task.id}"
        seed = derive_seed(self._seed, purpose, task.id, task.revision, position)
        return [Plan(task, group_id, sample, seed) for sample in range(n)]

    async def _group(self, pull: _Pull, plans: Sequence[Plan]) -> tuple[Trajectory, ...]:
        episodes = [asyncio.create_task(self._episode(pull, plan)) for plan in plans]
        try:
            return tuple(await asyncio.gather(*episodes))
        finally:
            await _cancel(episodes)

    async def _episode(self, pull: _Pull, plan: Plan) -> Trajectory:
        """One episode with its retries."""
        async with pull.gate:
            for attempt in range(self.settings.retries + 1):
                if plan.id in pull.waiting:
                    pull.waiting.remove(plan.id)
                else:
                    pull.player.engine.announce([plan.id])
                trajectory = await self._once(pull.player, plan)
                failure = trajectory.failure
                if failure is None or not failure.retryable or attempt == self.settings.retries:
                    break
                await asyncio.sleep(self.settings.backoff * 2**attempt)
            counts = {**trajectory.counts, "retries": float(attempt)}
            trajectory = dataclasses.replace(trajectory, counts=counts)
            self._watch.episode(trajectory)
            return trajectory

    async def _once(self, player: Player, plan: Plan) -> Trajectory:
        """One attempt, between its announcement and the end of its session."""
        try:
            with boundary(InfraKind.ENV, "constructor"):
                env = self._pool.take()
            broken = True
            try:
                trajectory = await play(player, env, plan)
                broken = trajectory.failure is not None
                return trajectory
            finally:
                self._pool.give_back(env, broken=broken)
        except InfraError as error:
            return Trajectory(
                plan.id, plan.task, plan.group_id, stop_reason=StopReason.INFRA, failure=Failure.of(error)
            )
        finally:
            player.engine.end_session(plan.id)

    def set_version(self, version: int) -> None:
        self.version = version

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.position = int(state["position"])

    async def close(self) -> None:
        self._closed = True
        await _cancel(self._jobs.copy())
        await self._pool.close()


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel what still runs, and wait until it has cleaned up after itself."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
