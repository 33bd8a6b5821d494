"""`Diagnosis`, the answer of one check, and `Skip`, raised by a check that cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Status = Literal["ok", "warn", "fail", "skip"]


class Skip(Exception):
    """A check cannot run; the message is the reason. Never leaves `diagnose`."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What one check found. `numbers` are what it judged by, `advice` is what to change ('' when ok)."""

    name: str
    status: Status
    detail: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    advice: str = ""


def graded(value: float, warn: float, fail: float) -> Status:
    """The status of a number that is worse the larger it is.

    >>> graded(0.1, 0.05, 0.15)
    'warn'
    """
    return "fail" if value >= fail else "warn" if value >= warn else "ok"
