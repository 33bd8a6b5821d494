"""`History`: the rows of a run as series by metric name. Reading a number out of rows lives here, judging it does not.

Missing and NaN mean the same: not measured in that row. Rows that only carry an evaluation have no training numbers,
so no check may take a gap for a zero or for a number that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from plugym.reward import Schedule
from plugym_runners.diagnose.diagnosis import Skip

Row = Mapping[str, float]
Weight = float | Schedule
Values = npt.NDArray[np.float64]

MIN_ROWS = 8
"""Fewer steps than this say nothing about a trend."""


@dataclass(frozen=True, slots=True)
class Series:
    """The measured values of one metric: steps float64[n] and values float64[n], in the order of the steps."""

    name: str
    steps: Values
    values: Values

    def __len__(self) -> int:
        return len(self.values)

    def head(self) -> float:
        """Median of the first quarter."""
        return float(np.median(self.values[: max(2, len(self) // 4)]))

    def tail(self) -> float:
        """Median of the last quarter."""
        return float(np.median(self.values[-max(2, len(self) // 4) :]))


@dataclass(frozen=True, slots=True)
class History:
    """Rows of a run (`metrics.jsonl`), of its evaluations (`evals.jsonl`), and the weights of the reward's parts."""

    rows: tuple[Row, ...]
    evals: tuple[Row, ...] = ()
    weights: Mapping[str, Weight] | None = None

    def series(self, name: str, at_least: int = MIN_ROWS) -> Series:
        """A metric of the training steps. Raises `Skip` when fewer than `at_least` rows have it."""
        return _series(self.rows, name, at_least, "rows")

    def eval_series(self, name: str, at_least: int) -> Series:
        """A metric of the evaluations. Raises `Skip` when fewer than `at_least` have it."""
        return _series(self.evals, name, at_least, "evaluations")

    def has(self, name: str) -> bool:
        """Whether any training row measured `name`."""
        return any(_known(row, name) for row in self.rows)

    def shares(self, name: str, total: str) -> Series:
        """`name` divided by `total`, over rows that have both and a total above 0."""
        rows = [row for row in self.rows if _known(row, name) and _known(row, total) and row[total] > 0]
        derived = [{"step": row["step"], name: row[name] / row[total]} for row in rows]
        return _series(derived, name, MIN_ROWS, "rows")


def together(history: History, names: Sequence[str], at_least: int = MIN_ROWS) -> Values:
    """Values of several metrics over the rows that have all of them: float64[n_names, n_rows].

    Raises `Skip` when fewer than `at_least` rows do.
    """
    rows = [row for row in history.rows if all(_known(row, name) for name in names)]
    if len(rows) < at_least:
        raise Skip(f"{len(rows)} rows have {' and '.join(names)}; at least {at_least} are needed")
    return np.array([[row[name] for row in rows] for name in names], dtype=np.float64)


def _known(row: Row, name: str) -> bool:
    value = row.get(name)
    return value is not None and math.isfinite(value)


def _series(rows: Sequence[Row], name: str, at_least: int, what: str) -> Series:
    found = [(row["step"], row[name]) for row in rows if _known(row, name)]
    if len(found) < at_least:
        raise Skip(f"{len(found)} {what} have {name}; at least {at_least} are needed")
    steps, values = np.array(found, dtype=np.float64).reshape(-1, 2).T
    return Series(name, steps, values)
