"""The run directory: where everything a run leaves behind lies, and the only code that knows those paths.

    runs/<name>/config.toml                        the resolved spec
                metrics.jsonl                      one line a step
                trajectories/step-000001.jsonl.gz  the groups of a step; eval-000000.jsonl.gz those of an evaluation
                checkpoints/step-000050/           complete or not there
                logs/attempt-1.log

One process writes (the run); any number may read at the same time.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from plugym.config import Layers, RunSpec, file_layer, to_layer
from plugym.errors import BadInput
from plugym.store import atomic
from plugym.store.groups import GroupWriter
from plugym.tomlfile import dump_toml

log = logging.getLogger("plugym.store")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class MetricsLog:
    """The rows of metrics.jsonl, each with `step` first; `warning` says so when the last line was cut and left out."""

    rows: tuple[Mapping[str, float], ...]
    warning: str = ""


@dataclass(frozen=True, slots=True)
class RunDir:
    """A run directory at `path`. Constructing it touches nothing; `create` makes a new one, `open` checks an old one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as out:
    ...     first, second = RunDir.create(Path(out), "demo"), RunDir.create(Path(out), "demo")
    ...     first.append_metrics(1, {"reward/mean": 0.5})
    ...     first.path.name, second.path.name, first.read_metrics().rows
    ('demo', 'demo-2', ({'step': 1, 'reward/mean': 0.5},))
    """

    path: Path

    @classmethod
    def create(cls, out: Path, name: str) -> RunDir:
        """Make `out/name`, or `name-2`, `name-3`... where that is taken: an earlier run is never written over.

        Raises `BadInput` when the name is no plain folder name or the folder cannot be made.
        """
        if not _NAME.fullmatch(name):
            raise BadInput(f"run name {name!r} is not a plain folder name: choose another with --name")
        number = 1
        try:
            out.mkdir(parents=True, exist_ok=True)
            while True:
                path = out / (name if number == 1 else f"{name}-{number}")
                try:
                    path.mkdir()
                    return cls(path)
                except FileExistsError:
                    number += 1
        except OSError as error:
            raise BadInput(f"cannot make a run directory in {out}: {error.strerror}; choose with --out") from error

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """An existing run. Raises `BadInput` when `path` holds none."""
        run = cls(path)
        if not run.config_path.is_file():
            raise BadInput(f"{path} is not a run directory: it has no config.toml")
        return run

    @property
    def config_path(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    def write_spec(self, spec: RunSpec) -> None:
        """Write the resolved spec as config.toml."""
        atomic.write_text(self.config_path, dump_toml(to_layer(spec)))

    def read_spec(self) -> RunSpec:
        """The spec this run was started with. Raises `BadInput` when config.toml does not fit."""
        layers = Layers()
        layers.add(file_layer(self.config_path), str(self.config_path))
        return layers.spec()

    def begin_attempt(self) -> tuple[int, Path]:
        """Number and log file of a new attempt at this run; removes what the last one left unfinished."""
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        for folder in (self.path, self.path / "checkpoints", self.path / "trajectories"):
            for left in atomic.discard_unfinished(folder):
                log.info("removed %s, which an earlier attempt did not finish", left)
        number = 1
        while (path := self.log_path(number)).exists():
            number += 1
        path.touch()
        return number, path

    def log_path(self, attempt: int) -> Path:
        return self.path / "logs" / f"attempt-{attempt}.log"

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the line of a step. A number that is not finite is written as null: JSON has no name for it."""
        row = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
        line = json.dumps({"step": step, **row}) + "\n"
        with self.metrics_path.open("ab+") as file:
            if _drop_cut_line(file):
                log.warning("the last line of %s was cut and is removed", self.metrics_path)
            file.write(line.encode())

    def read_metrics(self) -> MetricsLog:
        """All complete rows; null becomes NaN. Raises `BadInput` where a line other than the last is broken."""
        if not self.metrics_path.exists():
            return MetricsLog(())
        *lines, rest = self.metrics_path.read_bytes().split(b"\n")
        warning = f"{self.metrics_path}: the last line is cut and left out" if rest else ""
        rows = []
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                rows.append({name: math.nan if value is None else value for name, value in row.items()})
            except (ValueError, AttributeError) as error:
                raise BadInput(f"{self.metrics_path}:{number}: not a row of metrics: {error}") from error
        return MetricsLog(tuple(rows), warning)

    def write_groups(self, step: int, *, prefix: str = "step") -> GroupWriter:
        """A writer for the scored groups of a step (`prefix="eval"`: of the evaluation after it)."""
        return GroupWriter(self.path / "trajectories" / f"{prefix}-{step:06d}.jsonl.gz")

    def group_files(self) -> list[Path]:
        """The complete trajectory files, by name."""
        return sorted((self.path / "trajectories").glob("[!.]*.jsonl.gz"))

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[Path]:
        """An empty folder to save into; it becomes `checkpoints/step-<step>` when the body ends without an error."""
        with atomic.new_folder(self._checkpoint_path(step)) as folder:
            yield folder

    def checkpoints(self) -> dict[int, Path]:
        """Complete checkpoints by step, ascending."""
        folder = self.path / "checkpoints"
        names = os.listdir(folder) if folder.is_dir() else []
        steps = sorted(int(match[1]) for name in names if (match := _STEP.fullmatch(name)))
        return {step: self._checkpoint_path(step) for step in steps}

    def latest_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, None when there is none yet."""
        found = self.checkpoints()
        return found[max(found)] if found else None

    def prune_checkpoints(self, keep: int) -> list[Path]:
        """Remove all but the newest `keep` (at least 1) checkpoints; returns what was removed."""
        if keep < 1:
            raise ValueError(f"keep must be at least 1, got {keep}")
        old = list(self.checkpoints().values())[:-keep]
        for path in old:
            atomic.remove_folder(path)
        return old

    def _checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}"


def _drop_cut_line(file: BinaryIO) -> bool:
    """Cut a file back to its last complete line; True when something was cut."""
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return False
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return False
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)
    return True
