"""The store hook: metrics and episodes, written to the run directory while the run goes on.

It decides when something is written and under which step; how files look is `plugym.store`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from plugym.hooks import hookimpl
from plugym.runner import RunInfo
from plugym.store import GroupWriter, RunDir
from plugym.trajectory import Purpose, ScoredGroup

log = logging.getLogger("plugym_runners.hooks.store")


class StoreHook:
    """Writes `metrics.jsonl` and `trajectories/`.

    Groups go to the file of the step that is under way. Those of an evaluation go to `eval-<n>.jsonl.gz`, where n is
    the step whose weights were evaluated: the one under way when groups of it were seen already, else the last
    finished one (0 before the first). A group that has no JSON form is left out, said once, and counted at the end.
    """

    def __init__(self) -> None:
        self._run: RunDir | None = None
        self._writers: dict[str, GroupWriter] = {}
        self._finished = 0
        self._left_out = 0

    @hookimpl
    def plugym_run_start(self, run: RunInfo) -> None:
        self._run = RunDir(run.dir)
        self._finished = max(self._run.checkpoints(), default=0)

    @hookimpl
    def plugym_group_scored(self, group: ScoredGroup) -> None:
        prefix = "eval" if group.group.purpose is Purpose.EVAL else "step"
        try:
            self._writer(prefix).write(group)
        except TypeError as error:
            self._left_out += 1
            if self._left_out == 1:
                log.warning("episodes that cannot be stored are left out: %s", error)

    @hookimpl
    def plugym_eval_end(self) -> None:
        """Complete the evaluation's file: the runner notes next that it need not be repeated."""
        if "eval" in self._writers:
            self._writers.pop("eval").commit()

    @hookimpl
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run_dir.append_metrics(step, metrics)
        self._commit()
        self._finished = step

    @hookimpl
    def plugym_run_end(self) -> None:
        self._commit()
        if self._left_out:
            log.warning("%d groups had no JSON form and are not in trajectories/", self._left_out)

    @property
    def _run_dir(self) -> RunDir:
        if self._run is None:
            raise RuntimeError("plugym_run_start comes before any other hook")
        return self._run

    def _writer(self, prefix: str) -> GroupWriter:
        if prefix not in self._writers:
            step = self._finished + (prefix == "step" or "step" in self._writers)
            self._writers[prefix] = self._run_dir.write_groups(step, prefix=prefix)
        return self._writers[prefix]

    def _commit(self) -> None:
        for writer in self._writers.values():
            writer.commit()
        self._writers.clear()
