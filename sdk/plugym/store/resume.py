"""Where an interrupted run goes on, and how its directory is taken back to that point.

`find_resume_point` only reads; `rewind` removes what lies beyond the point, so that the run writes it again. Both may
be interrupted and repeated.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugym.store import atomic
from plugym.store.rundir import RunDir
from plugym.store.sealed import damage

log = logging.getLogger("plugym.store")

_GROUPS = re.compile(r"(?:step|eval)-(\d+)\.jsonl\.gz")


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """`step` updates are done and kept; `checkpoint` holds them (None: nothing is, start from the beginning), `state`
    is its state.json."""

    step: int = 0
    checkpoint: Path | None = None
    state: Mapping[str, Any] = field(default_factory=dict)


def find_resume_point(run: RunDir) -> ResumePoint:
    """The newest checkpoint that is whole and whose steps all have their line in metrics.jsonl.

    A damaged one is passed over and said. Where no checkpoint has all its lines, the newest is taken and what is lost
    is said; a run that writes no metrics has none to miss. Raises `BadInput` for a metrics file broken in the middle.
    """
    lines = _lines_without_gap(run)
    newest: Path | None = None
    for step, path in reversed(run.checkpoints().items()):
        problem = damage(path)
        if problem:
            log.warning("checkpoint %s is damaged and passed over: %s", path, problem)
            continue
        newest = newest or path
        if lines is None or step <= lines:
            if path != newest:
                log.warning("%s lacks lines after step %s: going back to %s", run.metrics_path, lines, path)
            return _point(path)
    if newest is None:
        return ResumePoint()
    point = _point(newest)
    log.warning("%s lacks lines between steps %s and %d: they are lost", run.metrics_path, lines, point.step)
    return point


def _point(checkpoint: Path) -> ResumePoint:
    state = json.loads((checkpoint / "state.json").read_text(encoding="utf-8"))
    return ResumePoint(int(state["step"]), checkpoint, state)


def _lines_without_gap(run: RunDir) -> int | None:
    """The last step up to which every step has its line; None where no metrics are written."""
    if not run.metrics_path.exists():
        return None
    steps = {row.get("step") for row in run.read_metrics().rows}
    last = 0
    while last + 1 in steps:
        last += 1
    return last


def rewind(run: RunDir, point: ResumePoint) -> None:
    """Remove checkpoints, lines and episodes beyond `point`, and a last line that was cut."""
    for step, path in run.checkpoints().items():
        if step > point.step:
            atomic.remove_folder(path)
    for path in (run.metrics_path, run.evals_path):
        _keep_lines(path, point.step)
    for path in run.group_files():
        match = _GROUPS.fullmatch(path.name)
        if match and int(match[1]) > point.step:
            path.unlink()


def _keep_lines(path: Path, step: int) -> None:
    if not path.exists():
        return
    *lines, cut = path.read_bytes().split(b"\n")
    kept = [line + b"\n" for line in lines if json.loads(line).get("step", 0) <= step]
    if cut:
        log.warning("the last line of %s was cut and is removed", path)
    if cut or len(kept) < len(lines):
        log.info("%s: keeping %d of %d lines, those up to step %d", path, len(kept), len(lines), step)
        atomic.write_bytes(path, b"".join(kept))
