"""The training loop, one direction: groups -> scores -> shaping -> advantages -> learner -> engine -> hooks.

Read `TrainLoop.step` first; everything else serves one line of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from plugym.algorithm import Advantage, Aux, Need, counted_trajectories
from plugym.engine import Engine
from plugym.errors import BadInput, InfraKind, RunStopped
from plugym.hooks import Hooks
from plugym.learner import Learner
from plugym.metrics import batch_metrics
from plugym.reward import Composite, TrainableReward
from plugym.rollout.episode import derive_seed
from plugym.scoring import score_group
from plugym.source import TrajectorySource
from plugym.trajectory import Group, ScoredGroup, Trajectory
from plugym_runners.compose import Composition

log = logging.getLogger("plugym.runner")


@dataclass(slots=True)
class TrainLoop:
    """Everything a step needs. `version` counts updates; it is the policy version stamped on sampled tokens."""

    composition: Composition
    source: TrajectorySource
    engine: Engine
    learner: Learner
    hooks: Hooks
    updates: int
    rng: np.random.Generator
    """The reward's randomness. Keyed by step, so that a resumed run draws what an uninterrupted one would."""
    version: int = 0
    _groups: AsyncIterator[Group] | None = field(default=None, repr=False)

    async def step(self, number: int) -> dict[str, float]:
        """One training step; returns its metrics."""
        started = time.perf_counter()
        rekey(self.rng, self.composition.spec.run.seed, "step", number)
        if isinstance(self.composition.reward, Composite):
            self.composition.reward.set_step(number)
        scored, kept = await self._collect()
        rolled = time.perf_counter()
        metrics = batch_metrics(scored)
        metrics["groups/kept"] = float(len(kept))
        metrics.update(await self._update(kept))
        metrics.update(await self._learn(scored))
        metrics["time/rollout"] = rolled - started
        metrics["time/train"] = time.perf_counter() - rolled
        metrics["time/step"] = time.perf_counter() - started
        return metrics

    async def _collect(self) -> tuple[list[ScoredGroup], list[ScoredGroup]]:
        """(groups as scored, groups shaped and kept). Pulls again while a resampling algorithm refuses groups."""
        spec, algo = self.composition.spec, self.composition.algo
        scored: list[ScoredGroup] = []
        kept: list[ScoredGroup] = []
        for _ in range(1 + (spec.run.max_skipped if algo.resamples else 0)):
            pulled = await self._pull(spec.rollout.tasks_per_step)
            for group in pulled:
                self.hooks.call("plugym_group_scored", group=group)
            _stop_if_reward_is_down(pulled)
            scored.extend(pulled)
            shaped = (algo.shape(group, self.composition.limits) for group in pulled)
            kept.extend(group for group in shaped if algo.keep(group))
            if len(kept) >= spec.rollout.tasks_per_step:
                break
        return scored, kept

    async def _pull(self, n: int) -> list[ScoredGroup]:
        if self._groups is None:
            self._groups = self.source.groups()
        label = "+".join(self.composition.spec.reward)
        jobs: list[asyncio.Task[ScoredGroup]] = []
        try:
            async for group in self._groups:
                jobs.append(asyncio.create_task(score_group(label, self.composition.reward, group)))
                if len(jobs) == n:
                    break
            scored = await asyncio.gather(*jobs)
        finally:
            for job in jobs:
                job.cancel()
        # Sorted, so that what is trained on does not depend on who finished first.
        return sorted(scored, key=lambda group: group.group.id)

    async def _update(self, kept: Sequence[ScoredGroup]) -> dict[str, float]:
        """Advantages over the whole batch, then `updates` optimizer steps over slices of it."""
        trajectories = counted_trajectories(kept)
        if not trajectories:
            log.warning("no group of this step can be trained on: none has a score, or all were filtered out")
            return {"groups/skipped": float(len(kept)), "actor/updates": 0.0}
        algo = self.composition.algo
        aux = await asyncio.to_thread(self._aux, trajectories)
        advantages = algo.advantages(kept, aux)
        by_id = {advantage.trajectory_id: advantage for advantage in advantages}
        skipped = sum(all(by_id[t.id].is_zero for _, t, _ in group.counted()) for group in kept)
        metrics: dict[str, float] = {"groups/skipped": float(skipped)}
        if skipped == len(kept):
            log.warning("every group was skipped: within each, all rewards are equal, so there is nothing to learn")
        slices = [part for part in _slices(kept, self.updates) if counted_trajectories(part)]
        reported: dict[str, list[float]] = {}
        for part in slices:
            batch = counted_trajectories(part)
            update = await asyncio.to_thread(self._learner_step, batch, [by_id[t.id] for t in batch], aux)
            for name, value in update.items():
                reported.setdefault(name, []).append(value)
        # A slice without a forward pass has no entropy, for one: a mean is over the slices that say something.
        metrics.update({n: max(v) if n.endswith("_max") else sum(v) / len(v) for n, v in reported.items()})
        metrics["actor/updates"] = float(len(slices))
        self.version += 1
        await self.engine.update_weights(self.version)
        self.source.set_version(self.version)
        return metrics

    def _learner_step(
        self, batch: Sequence[Trajectory], advantages: Sequence[Advantage], aux: Aux
    ) -> Mapping[str, float]:
        algo = self.composition.algo
        return self.learner.step(batch, advantages, algo.loss, aux=aux, skip_zero=algo.zero_advantage_is_zero_loss)

    def _aux(self, trajectories: Sequence[Trajectory]) -> Aux:
        """Only what is needed: with one update per step the old log-probs are those of the update itself."""
        needs = self.composition.algo.needs
        streams = [stream for trajectory in trajectories for stream in trajectory.streams]

        def by_trajectory(arrays: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
            rest = iter(arrays)
            return {t.id: tuple(next(rest) for _ in t.streams) for t in trajectories}

        return Aux(
            old_logprobs=by_trajectory(self.learner.logprobs(streams)) if self.updates > 1 else {},
            ref_logprobs=by_trajectory(self.learner.logprobs(streams, reference=True))
            if Need.REF_LOGPROBS in needs
            else {},
            values=by_trajectory(self.learner.values(streams)) if Need.VALUES in needs else {},
        )

    async def _learn(self, scored: Sequence[ScoredGroup]) -> dict[str, float]:
        """Let the reward learn from the groups as they were scored, before any shaping."""
        reward = self.composition.reward
        if not isinstance(reward, TrainableReward):
            return {}
        return {f"reward_model/{name}": value for name, value in (await reward.learn(scored)).items()}


def _stop_if_reward_is_down(groups: Sequence[ScoredGroup]) -> None:
    """Raises `RunStopped` when no answer of a pull could be scored because the reward failed each time."""
    failures = [
        score.why
        for group in groups
        for trajectory, score in zip(group.group.trajectories, group.scores, strict=True)
        if not trajectory.infra_failed and score.why.startswith(f"infra/{InfraKind.REWARD}")
    ]
    if failures and not any(group.counted() for group in groups):
        raise RunStopped(f"none of {len(failures)} answers could be scored: {failures[0]}")


def _slices(groups: Sequence[ScoredGroup], n: int) -> list[list[ScoredGroup]]:
    """`n` nearly equal runs of consecutive groups (fewer when there are fewer groups)."""
    n = min(n, len(groups))
    return [list(groups[len(groups) * i // n : len(groups) * (i + 1) // n]) for i in range(n)]


def rekey(rng: np.random.Generator, *key: int | str) -> None:
    """Let `rng`, wherever it was handed to, continue from a state that the key alone decides.

    >>> first, second = np.random.default_rng(1), np.random.default_rng(2)
    >>> rekey(first, 0, "step", 3)
    >>> rekey(second, 0, "step", 3)
    >>> bool(first.random() == second.random())
    True
    """
    rng.bit_generator.state = np.random.default_rng(derive_seed(*key)).bit_generator.state


def save_state(loop: TrainLoop, step: int, path: Path) -> dict[str, Any]:
    """Weights, optimizer and plugin states into the directory `path`; returns the run's own JSON state."""
    loop.learner.save(path)
    reward = loop.composition.reward
    if isinstance(reward, TrainableReward):
        (path / "reward").mkdir()
        reward.save(path / "reward")
    return {
        "step": step,
        "version": loop.version,
        "source": loop.source.state_dict(),
        "algorithm": loop.composition.algo.state_dict(),
    }


async def restore_state(loop: TrainLoop, path: Path, state: Mapping[str, Any]) -> None:
    """Continue from `save_state`. Raises `BadInput` when the checkpoint is that of another composition."""
    await asyncio.to_thread(loop.learner.load, path)
    reward = loop.composition.reward
    if isinstance(reward, TrainableReward):
        reward.load(path / "reward")
    try:
        loop.version = int(state["version"])
        loop.source.load_state_dict(state["source"])
        loop.composition.algo.load_state_dict(state["algorithm"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{path} does not fit this run: {type(error).__name__}: {error} in state.json") from error
    await loop.engine.update_weights(loop.version)
    loop.source.set_version(loop.version)
