"""The run directory: where everything a run leaves behind lies, and the only code that knows those paths.

    runs/<name>/config.toml                        the resolved spec
                metrics.jsonl, evals.jsonl         one line a step, one an evaluation
                trajectories/step-000001.jsonl.gz  the groups of a step; eval-000000.jsonl.gz those of an evaluation
                checkpoints/step-000050/           complete or not there; state.json is the run's own state
                logs/attempt-1.log
                outcome.json                       what the run returned; not there before it is finished

One process writes (the run); any number may read at the same time.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from plugym.config import Layers, RunSpec, file_layer
from plugym.errors import BadInput
from plugym.store import atomic
from plugym.store.groups import GroupLog, GroupWriter
from plugym.store.sealed import seal

log = logging.getLogger("plugym.store")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_LOGGERS = ("plugym", "plugym_runners")
_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True)
class MetricsLog:
    """Rows as they were appended, `step` first, null as NaN; `warning` says so when a cut last line was left out."""

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

    @property
    def evals_path(self) -> Path:
        return self.path / "evals.jsonl"

    def write_config(self, toml: str) -> None:
        """Write config.toml."""
        atomic.write_text(self.config_path, toml)

    def read_spec(self) -> RunSpec:
        """The spec this run was started with. Raises `BadInput` when config.toml does not fit."""
        layers = Layers()
        layers.add(file_layer(self.config_path), str(self.config_path))
        try:
            return layers.spec()
        except BadInput as error:
            raise BadInput(f"{self.config_path}: {error}") from error

    def write_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Mark the run as finished. `outcome` must have a JSON form."""
        atomic.write_text(self.path / "outcome.json", json.dumps(outcome, indent=2) + "\n")

    def read_outcome(self) -> dict[str, Any] | None:
        """What a finished run returned, None while it is not. Raises `BadInput` when the file cannot be read."""
        path = self.path / "outcome.json"
        try:
            outcome = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise BadInput(f"cannot read {path}: {error}; remove it to have the run looked at again") from error
        return dict(outcome)

    @contextmanager
    def logging(self) -> Iterator[int]:
        """One attempt at this run: what is logged goes to `logs/attempt-<n>.log` as well, until the body ends.

        Yields n. Removes what an earlier attempt left unfinished. Raises `BadInput` while another process writes here.
        """
        logs = self.path / "logs"
        logs.mkdir(exist_ok=True)
        with _only_writer(logs / ".lock"), log_to(path := _next_log(logs)):
            attempt = int(path.stem.removeprefix("attempt-"))
            for folder in (self.path, self.path / "checkpoints", self.path / "trajectories"):
                for left in atomic.discard_unfinished(folder):
                    log.info("removed %s, which an earlier attempt did not finish", left)
            yield attempt

    def append_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the line of a step. A number that is not finite is written as null: JSON has no name for it."""
        _append(self.metrics_path, step, metrics)

    def append_eval(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the line of an evaluation after `step` updates."""
        _append(self.evals_path, step, metrics)

    def read_metrics(self) -> MetricsLog:
        """The rows of metrics.jsonl. Raises `BadInput` where a line other than the last is broken."""
        return _read(self.metrics_path)

    def read_evals(self) -> MetricsLog:
        """The rows of evals.jsonl. Raises `BadInput` where a line other than the last is broken."""
        return _read(self.evals_path)

    def write_groups(self, step: int, *, prefix: str = "step") -> GroupWriter:
        """A writer for the scored groups of a step (`prefix="eval"`: of the evaluation after it)."""
        return GroupWriter(self.path / "trajectories" / f"{prefix}-{step:06d}.jsonl.gz")

    def group_log(self) -> GroupLog:
        """The episodes of an evaluation that is a run of its own."""
        return GroupLog(self.path / "trajectories" / "eval-000000.jsonl.gz")

    def group_files(self) -> list[Path]:
        """The complete trajectory files, by name."""
        return sorted((self.path / "trajectories").glob("[!.]*.jsonl.gz"))

    def write_checkpoint(self, step: int, save: Callable[[Path], Mapping[str, Any]], *, keep: int) -> Path:
        """Make `checkpoints/step-<step>`, complete or not at all, and remove all but the newest `keep` (at least 1).

        `save` fills an empty folder and returns the run's own state, which becomes state.json; files.json lists all of
        it, so that damage is found on resume. Returns the checkpoint.
        """
        path = self._checkpoint_path(step)
        with atomic.new_folder(path) as folder:
            state = save(folder)
            (folder / "state.json").write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
            seal(folder)
        for old in list(self.checkpoints().values())[:-keep]:
            atomic.remove_folder(old)
        return path

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

    def _checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:06d}"


def _next_log(logs: Path) -> Path:
    attempt = 1
    while (path := logs / f"attempt-{attempt}.log").exists():
        attempt += 1
    return path


@contextmanager
def _only_writer(lock: Path) -> Iterator[None]:
    """Hold a lock that the system frees when the process dies, however it dies.

    A POSIX lock, because children do not inherit it: a worker that outlives a killed run must not keep it.
    """
    with lock.open("w") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:
            raise BadInput(f"{lock.parents[1]} is being written by another process: wait for it or stop it") from error
        except OSError as error:
            log.warning("%s cannot be locked (%s): make sure that only one process writes there", lock, error)
        yield


@contextmanager
def log_to(path: Path) -> Iterator[None]:
    """Send what this process logs to the file `path` too, from level INFO on for our own loggers."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root, ours = logging.getLogger(), [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in ours]
    # A handler on the root silences the one of last resort, which shows warnings where nobody configured logging.
    extra = [handler] if root.handlers or logging.lastResort is None else [handler, logging.lastResort]
    for each in extra:
        root.addHandler(each)
    for logger in ours:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(ours, levels, strict=True):
            logger.setLevel(level)
        for each in extra:
            root.removeHandler(each)
        handler.close()


def _append(path: Path, step: int, metrics: Mapping[str, float]) -> None:
    row = {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
    line = json.dumps({"step": step, **row}) + "\n"
    with path.open("ab+") as file:
        if _drop_cut_line(file):
            log.warning("the last line of %s was cut and is removed", path)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())  # a checkpoint must not outlive the lines of its steps when the power fails


def _read(path: Path) -> MetricsLog:
    if not path.exists():
        return MetricsLog(())
    *lines, rest = path.read_bytes().split(b"\n")
    warning = f"{path}: the last line is cut and left out" if rest else ""
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append({name: math.nan if value is None else value for name, value in row.items()})
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"{path}:{number}: not a row of metrics: {error}") from error
    return MetricsLog(tuple(rows), warning)


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
