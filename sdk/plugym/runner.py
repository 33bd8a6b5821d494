"""The `Runner` contract (group `plugym.runners`): takes a whole `RunSpec` and trains with it.

`local` is the embedded torch runner; a cluster runner implements the same methods.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel

from plugym.config import RunSpec
from plugym.errors import BadInput


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What hooks are told about a run: its directory, the spec, and the number of this attempt (1 = first)."""

    dir: Path
    spec: RunSpec
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing `doctor` or a dry run looked at. `skip` means it could not be checked, and why."""

    name: str
    status: Literal["ok", "warn", "fail", "skip"]
    detail: str = ""


class TrainConfig(BaseModel, extra="forbid"):
    """Settings of a runner that has none of its own (the `[train]` table)."""


class Runner(ABC):
    """Constructed as `Runner(spec, config)`, where `config` is the validated `[train]` table."""

    Config: ClassVar[type[BaseModel]] = TrainConfig

    def __init__(self, spec: RunSpec, config: BaseModel) -> None:
        self.spec = spec
        self.config = config

    @abstractmethod
    def resolved(self) -> RunSpec:
        """The spec with every plugin setting spelled out. Raises `BadInput` for whatever cannot work, and loads
        no weights: this runs before anything is written."""

    @abstractmethod
    def dry_run(self) -> list[Finding]:
        """Check the whole composition: one scripted episode, one reward, one loss on a toy batch."""

    @abstractmethod
    def train(self) -> Mapping[str, Any]:
        """Run to the end; returns the outcome (`dir`, `steps`, `eval_before`, `eval_after`, `seconds`, ...)."""

    def resume(self, path: Path) -> Mapping[str, Any]:
        """Go on with the interrupted run in the run directory `path`, whose config.toml this runner was made from.

        Ends as the uninterrupted run would have, metrics included (`time/*` apart, on the same CPU); a finished run is
        left as it is. Returns the outcome, as `train` does. Raises `BadInput` for a runner that cannot resume, and for
        a directory that holds no run or one that does not fit.
        """
        raise BadInput(f"runner {type(self).__name__} cannot resume a run: start {path} again from its config.toml")
