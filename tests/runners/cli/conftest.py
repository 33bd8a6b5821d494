"""A command line under test: `cli(...)` runs one in process; `install(...)` puts a made-up distribution on the path."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from plugym.registry import use_registry
from plugym_runners.cli import main

FAKE_RUNNER = r'''
"""A runner that trains nothing, and is as noisy on stdout as a plugin can be."""
import os
from pydantic import BaseModel, Field
from plugym.errors import RewardError
from plugym.registry import registry
from plugym.runner import Finding, Runner

class Config(BaseModel, extra="forbid"):
    lr: float = Field(1e-3, gt=0, description="learning rate")
    ends: str = "well"

class FakeRunner(Runner):
    Config = Config

    def resolved(self):
        spec = self.spec.model_copy(deep=True)
        env = registry().create("envs", spec.env.name, spec.env.settings, prefix="--env.")
        spec.env.settings = env.config.model_dump(mode="json")
        spec.train = self.config.model_dump(mode="json")
        return spec

    def dry_run(self):
        print("noise of a dry run")
        return [Finding("model", "ok", "fine"), Finding("reward", "fail" if self.config.ends == "fail" else "skip")]

    def train(self):
        print("noise of python", flush=True)
        os.write(1, b"noise of a library\n")
        if self.config.ends == "reward":
            raise RewardError("reward 'x' gave nan for trajectory t1")
        if self.config.ends == "bug":
            raise KeyError("oops")
        if self.config.ends == "interrupt":
            raise KeyboardInterrupt
        return {"dir": self.spec.run.out, "steps": self.spec.run.steps, "eval_after": float("nan"), "seconds": 0.5}
'''


@dataclass(frozen=True, slots=True)
class Result:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """stdout as exactly one JSON document."""
        return json.loads(self.out)


Cli = Callable[..., Result]
Install = Callable[..., None]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cli:
    """Run a command line in an empty folder, which `tmp_path / "cwd"` is."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(*args: str) -> Result:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(args)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return Result(ended.value.code, out, err)

    return run


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a distribution: metadata with entry points, and modules."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    made: list[str] = []

    def add(dist: str, points: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]) -> None:
        info = site / f"{dist.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        lines = []
        for group, names in points.items():
            lines += [f"[plugym.{group}]", *(f"{name} = {target}" for name, target in names.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source)
            made.append(name)
        use_registry(None)

    yield add
    for name in made:
        sys.modules.pop(name, None)
    use_registry(None)


@pytest.fixture
def fake(install: Install) -> tuple[str, ...]:
    """The flags of a run with a runner that trains nothing."""
    install("fake-runner", {"runners": {"fake": "fake_runner:FakeRunner"}}, {"fake_runner": FAKE_RUNNER})
    return ("--env", "math", "--reward", "verifier", "--algo", "grpo", "--backend", "fake")
