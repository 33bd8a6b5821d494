"""Trajectories, groups and distributions made by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from plugym.errors import Failure, InfraKind
from plugym.message import Action, Message
from plugym.registry import Registry, UserRegistry, use_registry
from plugym.task import Task
from plugym.trajectory import Group, StopReason, Trajectory, Turn, stream_of


def trajectory(name: str, answer: str = "", tokens: Sequence[int] = (2,), **changes: Any) -> Trajectory:
    """An episode with `tokens[i]` sampled tokens in turn i, each after two observed ones, in one stream."""
    turns = tuple(Turn((Message("user", f"q{i}"),), Action.of(answer)) for i in range(len(tokens)))
    stream = stream_of([([1, 2], [7] * n, [-0.5] * n) for n in tokens])
    return Trajectory(**{"id": name, "task": None, "group_id": "g", "turns": turns, "streams": (stream,), **changes})


def failed(name: str) -> Trajectory:
    """An episode that infrastructure ended."""
    failure = Failure(InfraKind.ENV, "it broke")
    return Trajectory(name, None, "g", stop_reason=StopReason.INFRA, failure=failure)


def group(*trajectories: Trajectory, task: Task | None = None, name: str = "g") -> Group:
    return Group(name, task, trajectories)


def install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, dist: str, points: Mapping[str, Mapping[str, str]], **modules: str
) -> None:
    """A distribution as pip would leave it in `folder`: its metadata, its entry points and its modules, on sys.path.

    The registry is rebuilt on its next use.
    """
    info = folder / f"{dist.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
    sections = [
        f"[plugym.{kind}]\n" + "".join(f"{name} = {target}\n" for name, target in names.items())
        for kind, names in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections))
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(source)
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(folder)
    use_registry(None)


def user_registry(folder: Path, text: str) -> Registry:
    """The registry of a user whose registry.toml says `text`."""
    path = folder / "user-registry.toml"
    path.write_text(text)
    return Registry(UserRegistry.read(path))
