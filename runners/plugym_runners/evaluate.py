"""Evaluation: play held-out tasks, score them, and say how many answers were right."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import numpy as np

from plugym.config import EvalSettings
from plugym.engine import Sampling
from plugym.reward import RewardProvider
from plugym.rollout.driver import RolloutDriver
from plugym.scoring import score_group
from plugym.task import Taskset
from plugym.trajectory import Purpose, ScoredGroup

ACCURACY = "eval/avg@k"
"""Mean over tasks of the share of right answers."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Scored groups, one per task, in task order; `metrics` under the names of a run."""

    groups: tuple[ScoredGroup, ...]
    metrics: dict[str, float]

    @property
    def accuracy(self) -> float | None:
        """Mean over tasks of the share of right answers; None when nothing could be scored."""
        return self.metrics.get("eval/avg@k")


async def evaluate(driver: RolloutDriver, reward: RewardProvider, tasks: Taskset, settings: EvalSettings) -> EvalResult:
    """Play `n` episodes of at most `n_tasks` tasks, each task exactly once, and score them."""
    sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p)
    scoring = []
    chosen = list(tasks.take(settings.n_tasks))
    async for group in driver.play(chosen, settings.n, sampling=sampling, purpose=Purpose.EVAL):
        scoring.append(asyncio.create_task(score_group("eval", reward, group)))
    groups = sorted(await asyncio.gather(*scoring), key=lambda scored: scored.group.id)
    return EvalResult(tuple(groups), eval_metrics(groups))


def eval_metrics(groups: list[ScoredGroup]) -> dict[str, float]:
    """`eval/avg@k` is the mean over tasks of the share of right answers; infra-failed and unscored ones do not count.

    A score without a verdict counts with its value.
    """
    shares, unscored, failed = [], 0, 0
    for scored in groups:
        counted = scored.counted()
        failed += sum(trajectory.infra_failed for trajectory in scored.group.trajectories)
        unscored += len(scored.group.trajectories) - len(counted)
        verdicts = [_verdict(scored, index, value) for index, _, value in counted]
        if verdicts:
            shares.append(float(np.mean(verdicts)))
    metrics = {"eval/tasks": float(len(groups)), "eval/unscored": float(unscored - failed), "eval/infra": float(failed)}
    if shares:
        metrics["eval/avg@k"] = float(np.mean(shares))
    return metrics


def _verdict(scored: ScoredGroup, index: int, value: float) -> float:
    correct = scored.scores[index].correct
    return value if correct is None else float(correct)
