"""Checks: how the answer of one trajectory is decided. The `verifier` reward dispatches on `Task.check` to these.

A checker is a plugin of group `plugym.checkers`, constructed as `Checker(config)`. Stateless ones need nothing but the
task and the trajectory, so stored episodes can be re-scored without new rollouts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import BaseModel

from plugym.reward import Score
from plugym.task import Task
from plugym.trajectory import Trajectory


class CheckerConfig(BaseModel, extra="forbid"):
    """Settings of a checker that has none of its own; `Task.check.args` must fit the checker's `Config`."""


class Checker(ABC):
    """Decides one answer. The score's value is in [0, 1] and `correct` is set."""

    Config: ClassVar[type[BaseModel]] = CheckerConfig
    stateless: ClassVar[bool] = True

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    @abstractmethod
    async def check(self, task: Task, trajectory: Trajectory) -> Score:
        """Exactly one score. Anything wrong with the answer is a verdict, never an exception."""

    async def close(self) -> None:
        """Free workers. Idempotent."""
