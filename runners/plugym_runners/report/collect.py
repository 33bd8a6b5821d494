"""Everything the page shows, gathered from a run directory as one JSON document.

Episodes are kept up to a budget of bytes, shared evenly by the trajectory files, whole groups at a time; how many are
left out, and which files could not be read, is part of the document.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from plugym.errors import BadInput
from plugym.store import RunDir, read_groups
from plugym.store.rundir import MetricsLog
from plugym_runners.diagnose.run import diagnose_run
from plugym_runners.report.decode import Vocabulary
from plugym_runners.report.episodes import Packer

BUDGET = 3_500_000
"""Bytes of episodes in a page: with metrics and the page itself it stays below 5 MB."""


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
    notes: list[str] = []
    for number, path in enumerate(files):
        limit = packer.size + max(0, budget - packer.size) // (len(files) - number)
        kind, _, step = path.name.removesuffix(".jsonl.gz").rpartition("-")
        source = {"kind": kind, "step": int(step) if step.isdigit() else step, "episodes": 0, "shown": 0}
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
