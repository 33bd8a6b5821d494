"""Evaluation: play held-out tasks, score them, and say how many answers were right."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plugym.config import EvalSettings
from plugym.engine import Sampling
from plugym.reward import RewardProvider
from plugym.rollout.driver import RolloutDriver
from plugym.scoring import score_group
from plugym.task import Taskset
from plugym.trajectory import Group, Purpose, ScoredGroup
from plugym_runners.estimates import summarise

ACCURACY = "eval/avg@k"
"""Mean over tasks of the share of right answers."""


@dataclass(frozen=True, slots=True)
class EvalResult:
    """Scored groups, one per task, in task order; `metrics` under the names of a run."""

    groups: tuple[ScoredGroup, ...]
    metrics: dict[str, float]


async def evaluate(
    driver: RolloutDriver,
    reward: RewardProvider,
    tasks: Taskset,
    settings: EvalSettings,
    *,
    done: Sequence[ScoredGroup] = (),
    on_group: Callable[[ScoredGroup], None] = lambda group: None,
) -> EvalResult:
    """Play `n` episodes of at most `n_tasks` tasks, each task exactly once, and score them.

    done: groups of an earlier attempt, which are not played again. on_group: told of each new group once it is scored.
    """
    sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p)
    chosen = list(tasks.take(settings.n_tasks))
    known = {scored.group.id for scored in done}

    async def score(group: Group) -> ScoredGroup:
        scored = await score_group("eval", reward, group)
        on_group(scored)
        return scored

    scoring: list[asyncio.Task[ScoredGroup]] = []
    try:
        async for group in driver.play(chosen, settings.n, sampling=sampling, purpose=Purpose.EVAL, skip=known):
            scoring.append(asyncio.create_task(score(group)))
        new = await asyncio.gather(*scoring)
    finally:
        for job in scoring:
            job.cancel()
    groups = sorted([*done, *new], key=lambda scored: scored.group.id)
    return EvalResult(tuple(groups), eval_metrics(groups, settings.n))


def eval_metrics(groups: Sequence[ScoredGroup], n: int) -> dict[str, float]:
    """`eval/avg@k` and, with several episodes per task, `eval/maj@k` (k = n) and `eval/pass@<k>`.

    Infra-failed and unscored episodes count in none of them; `eval/infra` and `eval/unscored` say how many they are.
    """
    summary = summarise(groups, n)
    metrics = {
        "eval/tasks": float(summary.tasks),
        "eval/unscored": float(summary.unscored),
        "eval/infra": float(sum(summary.infra.values())),
    }
    if summary.avg is not None:
        metrics[ACCURACY] = summary.avg.value
    if n > 1:
        metrics.update({f"eval/pass@{k}": found.value for k, found in summary.passes.items() if k > 1})
        if summary.maj is not None:
            metrics["eval/maj@k"] = summary.maj.value
    return metrics
