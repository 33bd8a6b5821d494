"""The `verifier` reward: decides answers by checking them, without any model.

It dispatches on `Task.check` to the checkers (`math`, `choice`, `exact`, `outcome`, or any plugin of group
`plugym.checkers`); the value is in [0, 1].
"""

from __future__ import annotations

import asyncio
import json

from pydantic import BaseModel, Field

from plugym.checker import Checker
from plugym.errors import BadInput
from plugym.registry import registry
from plugym.reward import RewardProvider, Score
from plugym.task import Check, Task
from plugym.trajectory import Group, Trajectory

__all__ = ["Verifier", "VerifierConfig"]


class VerifierConfig(BaseModel, extra="forbid"):
    """Settings of the verifier."""

    check: str | None = Field(None, description="use this checker whatever the task says")
    check_settings: dict[str, object] = Field(default_factory=dict, description="settings of that checker")


class Verifier(RewardProvider):
    """One verdict per trajectory, from the check its task names."""

    Config = VerifierConfig
    range = (0.0, 1.0)

    def __init__(self, config: BaseModel | None = None) -> None:
        self.settings = config if isinstance(config, VerifierConfig) else VerifierConfig()
        super().__init__(self.settings)
        self._checkers: dict[str, Checker] = {}

    async def score(self, group: Group) -> list[Score]:
        return list(await asyncio.gather(*(self._one(trajectory) for trajectory in group.trajectories)))

    async def _one(self, trajectory: Trajectory) -> Score:
        if trajectory.infra_failed:
            return Score.unscored("infrastructure failure")
        if not trajectory.turns:
            return Score.unscored("no turn was played")
        if trajectory.task is None:
            return Score.unscored("no task to verify against")
        return await self._checker(trajectory.task).check(trajectory.task, trajectory)

    def can_rescore(self, trajectory: Trajectory) -> bool:
        """Whether the check of its task is stateless."""
        return trajectory.task is None or self._checker(trajectory.task).stateless

    def _checker(self, task: Task) -> Checker:
        """One checker instance per name and settings, shared by all tasks that ask for the same."""
        if self.settings.check is not None:
            check = Check(self.settings.check, self.settings.check_settings)
        elif task.check is not None:
            check = task.check
        else:
            raise BadInput(f"task {task.id!r} names no check: choose one with --reward.verifier.check NAME")
        key = f"{check.name} {json.dumps(dict(check.args), sort_keys=True)}"
        if key not in self._checkers:
            self._checkers[key] = registry().create("checkers", check.name, check.args)
        return self._checkers[key]

    async def close(self) -> None:
        checkers, self._checkers = self._checkers, {}
        for checker in checkers.values():
            await checker.close()
