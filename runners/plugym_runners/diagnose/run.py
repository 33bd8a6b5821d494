"""`diagnose` for a run directory: the one place here that reads files."""

from __future__ import annotations

from plugym.config import WeightSchedule
from plugym.reward import Schedule
from plugym.store import RunDir
from plugym_runners.diagnose import Diagnosis, diagnose


def diagnose_run(run: RunDir) -> list[Diagnosis]:
    """Findings of a run as it stands. Raises `BadInput` where config.toml or the metrics cannot be read."""
    weights = {label: _weight(entry.weight) for label, entry in run.read_spec().reward.items()}
    return diagnose(run.read_metrics().rows, run.read_evals().rows, weights)


def _weight(weight: float | WeightSchedule) -> float | Schedule:
    return Schedule(weight.start, weight.end, weight.steps) if isinstance(weight, WeightSchedule) else weight
