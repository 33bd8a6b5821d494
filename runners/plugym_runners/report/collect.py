"""Everything the page shows, gathered from a run directory as one JSON document.

Episodes are kept up to a budget of bytes, shared evenly by the trajectory files, whole groups at a time; how many are
left out, and which files could not be read, is part of the document.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from plugym.errors import BadInput
from plugym.store import RunDir, read_groups
from plugym.store.rundir import MetricsLog
from plugym_runners.diagnose.run import diagnose_run
from plugym_runners.report.decode import Vocabulary
from plugym_runners.report.episodes import Packer

_FILE = re.compile(r"(?P<kind>.+)-(?P<step>\d+)\.jsonl\.gz")

BUDGET = 3_500_000
"""Bytes of episodes in a page: with metrics and the page itself it stays below 5 MB."""

MAX_FILES = 50
"""Trajectory files of a kind (steps, evaluations) that are read: reading all of a long run takes minutes."""


def collect(run: RunDir, budget: int = BUDGET) -> dict[str, Any]:
    """The document of a run. Raises `BadInput` where config.toml or metrics.jsonl cannot be read."""
    spec = run.read_spec()
    metrics, evals = run.read_metrics(), run.read_evals()
    vocabulary = Vocabulary.of(run)
    packer = Packer(vocabulary)
    sources, episodes, notes = _episodes(run.group_files(), packer, budget)
    notes += [log.warning for log in (metrics, evals) if log.warning]
    title = f"{spec.env.name} + {'+'.join(spec.reward)} + {spec.algo.name} on {spec.model}"
    return {
        "run": run.path.resolve().name,
        "title": title,
        "config": run.config_path.read_text(encoding="utf-8"),
        "metrics": columns(metrics),
        "evals": columns(evals),
        "findings": [_finite(asdict(finding)) for finding in diagnose_run(run)],
        "sources": sources,
        "episodes": episodes,
        "texts": packer.texts,
        "vocabulary": vocabulary.table,
        "decoding": vocabulary.source,
        "notes": notes,
    }


def columns(log: MetricsLog) -> dict[str, list[float | None]]:
    """Rows as columns of equal length, in five significant digits; None where a row has no number.

    >>> columns(MetricsLog(({"step": 1, "a": 0.123456}, {"step": 2, "b": math.nan})))
    {'step': [1.0, 2.0], 'a': [0.12346, None], 'b': [None, None]}
    """
    names = dict.fromkeys(name for row in log.rows for name in row)
    return {name: [_number(row.get(name)) for row in log.rows] for name in names}


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _finite(finding: dict[str, Any]) -> dict[str, Any]:
    return {**finding, "numbers": {name: _number(value) for name, value in finding["numbers"].items()}}


def _episodes(
    files: Sequence[Path], packer: Packer, budget: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[str]]:
    """(files with what is shown of them, episodes, notes for the reader)."""
    sources: list[dict[str, Any]] = []
    episodes: list[dict[str, Any]] = []
    chosen = _spread(files)
    notes: list[str] = []
    if len(chosen) < len(files):
        unread = len(files) - len(chosen)
        notes.append(f"{unread} of {len(files)} trajectory files are not read: those shown are spread over the run")
    for number, (kind, step, path) in enumerate(chosen):
        limit = packer.size + max(0, budget - packer.size) // (len(chosen) - number)
        source: dict[str, Any] = {"kind": kind, "step": step, "episodes": 0, "shown": 0}
        try:
            for scored in read_groups(path):
                source["episodes"] += len(scored.group.trajectories)
                if packer.size < limit:
                    packed = packer.group(scored, number)
                    source["shown"] += len(packed)
                    episodes += packed
        except BadInput as error:
            notes.append(f"only read up to the error: {error}")
        sources.append(source)
    left_out = sum(source["episodes"] - source["shown"] for source in sources)
    if left_out:
        notes.append(f"{left_out} of {left_out + len(episodes)} episodes are left out to keep this page small")
    return sources, episodes, notes


def _spread(files: Sequence[Path]) -> list[tuple[str, int, Path]]:
    """(kind, step, file) of at most `MAX_FILES` files of each kind, evenly spread, the first and last among them."""
    kinds: dict[str, list[tuple[str, int, Path]]] = {}
    for path in files:
        if match := _FILE.fullmatch(path.name):
            kinds.setdefault(match["kind"], []).append((match["kind"], int(match["step"]), path))
    chosen = []
    for found in kinds.values():
        found.sort(key=lambda entry: entry[1])
        picks = np.unique(np.linspace(0, len(found) - 1, min(len(found), MAX_FILES)).round().astype(int))
        chosen += [found[i] for i in picks]
    return chosen
