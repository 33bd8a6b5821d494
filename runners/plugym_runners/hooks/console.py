"""Progress in the terminal, on stderr only: a live bar on a terminal, one plain line a step anywhere else.

How a run looks while it goes on is decided here; what is kept of it is `store.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from plugym.hooks import hookimpl
from plugym.runner import RunInfo
from plugym.trajectory import Purpose, ScoredGroup

STDERR = Console(stderr=True, highlight=False)
"""Where progress goes. The command line sets `quiet` when a program reads it."""


class ConsoleProgress:
    """Shows step, mean reward, kept groups, tokens and time of every step."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._total = 0
        self._reset()

    def _reset(self) -> None:
        self._groups: Counter[Purpose] = Counter()
        self._tokens: Counter[Purpose] = Counter()
        self._since = time.perf_counter()

    @hookimpl
    def plugym_run_start(self, run: RunInfo) -> None:
        spec = run.spec
        self._total = spec.run.steps
        rewards = "+".join(spec.reward)
        _say(f"{spec.env.name} + {rewards} + {spec.algo.name} on {spec.model}, {self._total} steps, in {run.dir}")
        if STDERR.is_terminal and not STDERR.quiet:
            columns = (BarColumn(20), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
            self._bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=STDERR)
            self._task = self._bar.add_task("starting", total=self._total)
            self._bar.start()
        self._reset()

    @hookimpl
    def plugym_group_scored(self, group: ScoredGroup) -> None:
        purpose = group.group.purpose
        self._groups[purpose] += 1
        self._tokens[purpose] += sum(trajectory.trained_tokens for trajectory in group.group.trajectories)
        if self._bar is not None:
            tokens = _thousands(self._tokens[purpose])
            self._bar.update(self._task, description=f"{purpose}: {self._groups[purpose]} groups, {tokens} tokens")

    @hookimpl
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        line = self._summary(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=line)
        else:
            _say(f"step {step}/{self._total}  {line}")
        self._reset()

    @hookimpl
    def plugym_run_end(self, outcome: Mapping[str, Any]) -> None:
        if self._bar is not None:
            self._bar.stop()
        results = [
            f"{name} {outcome[name]:.3f}" for name in ("eval_before", "eval_after") if outcome.get(name) is not None
        ]
        _say("  ".join([str(outcome["status"]), *results]))

    def _summary(self, metrics: Mapping[str, float]) -> str:
        mean = metrics.get("reward/mean")
        parts = [
            "reward -" if mean is None else f"reward {mean:.3f}",
            f"kept {metrics.get('groups/kept', 0):.0f}/{self._groups[Purpose.TRAIN]}",
            f"{_thousands(self._tokens[Purpose.TRAIN])} tokens",
            f"{time.perf_counter() - self._since:.1f} s",
        ]
        if "eval/avg@k" in metrics:
            parts.append(f"eval {metrics['eval/avg@k']:.3f}")
        return "  ".join(parts)


def _thousands(count: int) -> str:
    """
    >>> _thousands(950), _thousands(12345)
    ('950', '12.3k')
    """
    return str(count) if count < 1000 else f"{count / 1000:.1f}k"


def _say(line: str) -> None:
    STDERR.print(line, markup=False, soft_wrap=True)
