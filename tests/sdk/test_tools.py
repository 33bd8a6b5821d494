"""`ToolEnv`: schemas are made once for a class, and each instance still runs its own methods."""

from __future__ import annotations

from typing import Any

import pytest

from plugym.env import StepResult
from plugym.message import Action, Message, ToolCall
from plugym.task import Taskset
from plugym.tools import ToolEnv, tool


class Counting(ToolEnv):
    """Each kind of method as a tool."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    @tool
    def add(self, n: int) -> int:
        """Add to this instance's total."""
        self.total += n
        return self.total

    @staticmethod
    @tool
    def double(n: int) -> int:
        """Twice n."""
        return 2 * n

    @classmethod
    @tool
    def kind(cls) -> str:
        """Name of the class."""
        return cls.__name__

    def tasks(self, split: str) -> Taskset:
        return Taskset([])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[tuple[Message, ...], dict[str, Any]]:
        return (), {}

    def answer(self, action: Action) -> StepResult:
        return (), 0.0, True, False, {}


class Renamed(Counting):
    """Inherits the tools."""


def say(env: ToolEnv, name: str, **arguments: Any) -> str:
    return env.execute(ToolCall("c", name, arguments)).message.text


def test_instances_share_schemas_and_nothing_else() -> None:
    first, second = Counting(), Counting()
    assert [spec.name for spec in first.tools()] == ["add", "double", "kind"]
    assert all(a is b for a, b in zip(first.tools(), second.tools(), strict=True))
    assert [say(first, "add", n=2), say(first, "add", n="3"), say(second, "add", n=1)] == ["2", "5", "1"]


def test_static_and_class_methods_are_tools() -> None:
    assert [say(Counting(), "double", n=4), say(Counting(), "kind"), say(Renamed(), "kind")] == [
        "8",
        "Counting",
        "Renamed",
    ]


@pytest.mark.parametrize("arguments", [{"n": "x"}, {}, {"n": 1, "m": 2}, {"n": 1, "self": 2}])
def test_bad_arguments_are_told_to_the_model(arguments: dict[str, Any]) -> None:
    env = Counting()
    result = env.execute(ToolCall("c", "add", arguments))
    assert result.message.text.startswith("Error: bad arguments for add: ")
    assert not result.executed
    assert env.total == 0
