"""What an evaluation says about a policy: avg@n, pass@k, maj@n with standard errors, tables, and what was left out.

Statistics of scored groups alone; nothing here plays or scores. A task is one observation: its samples are averaged
first, and the standard error is that of the mean over tasks, so it stays honest where samples of a task are alike
(clustered standard errors, Miller 2024, arXiv:2411.00640, section 2.2). A score without a verdict counts with its value
in avg@n and not at all where right or wrong is needed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from plugym.functional.statistics import pass_at_k
from plugym.reward import Score
from plugym.trajectory import ScoredGroup

PATH = "path_"
"""Prefix of the part of a score that says how a check decided it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `tasks` tasks and its standard error, None where a single task gives none."""

    value: float
    se: float | None
    tasks: int

    def __str__(self) -> str:
        return f"{self.value:.3f}" + ("" if self.se is None else f" +- {self.se:.3f}")

    def to_json(self) -> dict[str, float | int | None]:
        return {"value": self.value, "se": self.se, "tasks": self.tasks}


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean and `std(values, ddof=1) / sqrt(n)`; None for no values.

    >>> str(estimate([1.0, 0.0, 1.0, 1.0]))
    '0.750 +- 0.250'
    """
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    error = float(array.std(ddof=1) / np.sqrt(len(array))) if len(array) > 1 else None
    return Estimate(float(array.mean()), error, len(array))


def average(group: ScoredGroup) -> float | None:
    """Share of right answers among the counted ones of a task, None where none counts."""
    counted = group.counted()
    if not counted:
        return None
    correct = [group.scores[index].correct for index, _, _ in counted]
    verdicts = [value if c is None else float(c) for c, (_, _, value) in zip(correct, counted, strict=True)]
    return float(np.mean(verdicts))


def pass_share(group: ScoredGroup, k: int) -> float | None:
    """Unbiased pass@k of a task; None where fewer than k answers count, or one has no verdict."""
    verdicts = [score.correct for score in _counted(group)]
    if len(verdicts) < k or any(correct is None for correct in verdicts):
        return None
    return pass_at_k(len(verdicts), sum(correct is True for correct in verdicts), k)


def majority(group: ScoredGroup) -> float | None:
    """Whether the answer given most often is right (Wang et al. 2022, arXiv:2203.11171).

    Right answers are one answer however they are spelt, because each equals the reference. Samples without an answer do
    not vote; where nobody votes the task is lost. A tie is the chance of drawing a right one among the answers in
    front. None where no answer counts or a check gave no verdict.
    """
    scores = _counted(group)
    if not scores or any(score.correct is None for score in scores):
        return None
    votes = Counter("" if score.correct else f"wrong {score.answer}" for score in scores if score.answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    front = [answer for answer, count in votes.items() if count == most]
    return ("" in front) / len(front)


def _counted(group: ScoredGroup) -> list[Score]:
    return [group.scores[index] for index, _, _ in group.counted()]


def powers_of_two(n: int) -> list[int]:
    """
    >>> powers_of_two(6)
    [1, 2, 4]
    """
    return [2**i for i in range(n.bit_length())]


@dataclass(frozen=True, slots=True)
class Summary:
    """An evaluation with `n` episodes per task. Counts are of episodes unless they say tasks."""

    n: int
    tasks: int
    episodes: int
    avg: Estimate | None
    passes: Mapping[int, Estimate]
    maj: Estimate | None
    unscored: int
    infra: Mapping[str, int]
    stops: Mapping[str, int]
    paths: Mapping[str, int]
    levels: Mapping[str, Estimate]
    sources: Mapping[str, Estimate]
    response_mean: float | None

    def to_json(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "tasks": self.tasks,
            "episodes": self.episodes,
            "avg@n": self.avg and self.avg.to_json(),
            "pass@k": {str(k): found.to_json() for k, found in self.passes.items()},
            "maj@n": self.maj and self.maj.to_json(),
            "unscored": self.unscored,
            "infra": dict(self.infra),
            "stop": dict(self.stops),
            "paths": dict(self.paths),
            "levels": {name: found.to_json() for name, found in self.levels.items()},
            "sources": {name: found.to_json() for name, found in self.sources.items()},
            "response_tokens_mean": self.response_mean,
        }


def summarise(groups: Sequence[ScoredGroup], n: int) -> Summary:
    """Everything at once. `n` is the number of episodes that were asked for per task."""
    played = [t for group in groups for t in group.group.trajectories if not t.infra_failed]
    failures = [t.failure for group in groups for t in group.group.trajectories if t.failure is not None]
    counted = [score for group in groups for score in _counted(group)]
    passes = {k: _over(groups, partial(pass_share, k=k)) for k in powers_of_two(n)}
    answered = any(score.answer is not None for score in counted)
    paths = Counter(
        name.rpartition("/")[2].removeprefix(PATH)
        for score in counted
        for name in score.parts
        if name.rpartition("/")[2].startswith(PATH)
    )
    tokens = [t.response_tokens(observations=False) for t in played if t.level == "tokens"]
    return Summary(
        n=n,
        tasks=len(groups),
        episodes=sum(len(group.group.trajectories) for group in groups),
        avg=_over(groups, average),
        passes={k: found for k, found in passes.items() if found is not None},
        maj=_over(groups, majority) if answered else None,
        unscored=len(played) - len(counted),
        infra=Counter(str(failure.kind) for failure in failures),
        stops=Counter(str(t.stop_reason) for t in played),
        paths=paths,
        levels=_table(groups, _level),
        sources=_table(groups, _source),
        response_mean=float(np.mean(tokens)) if tokens else None,
    )


def _over(groups: Sequence[ScoredGroup], of_task: Callable[[ScoredGroup], float | None]) -> Estimate | None:
    return estimate([value for group in groups if (value := of_task(group)) is not None])


def _table(groups: Sequence[ScoredGroup], key: Callable[[ScoredGroup], str | None]) -> dict[str, Estimate]:
    """avg@n by a property of the task, in the order of its names."""
    rows: defaultdict[str, list[ScoredGroup]] = defaultdict(list)
    for group in groups:
        name = key(group)
        if name is not None:
            rows[name].append(group)
    found = {name: _over(rows[name], average) for name in sorted(rows)}
    return {name: row for name, row in found.items() if row is not None}


def _level(group: ScoredGroup) -> str | None:
    """Difficulty to one decimal: it is a number in [0, 1], and may differ from task to task."""
    task = group.group.task
    return None if task is None or task.difficulty is None else f"{task.difficulty:.1f}"


def _source(group: ScoredGroup) -> str | None:
    """The first two parts of the task's id, without its last: `math/gsm8k` of `math/gsm8k/17-5f2e`."""
    task = group.group.task
    return None if task is None else "/".join(task.id.split("/")[:-1][:2]) or None
