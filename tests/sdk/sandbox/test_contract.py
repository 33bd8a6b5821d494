"""The sandbox contract with a small fake: a checker can tell a wrong program from a broken sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from plugym.checker import Checker
from plugym.errors import InfraError, InfraKind
from plugym.message import Action
from plugym.reward import Score
from plugym.sandbox import Language, RunResult, Sandbox, SandboxLimits, SandboxSession, Status
from plugym.task import Task
from plugym.trajectory import Trajectory, Turn


class CannedSandbox(Sandbox):
    """Ends every program as it is told to."""

    guarantees = frozenset({"network"})

    def __init__(self, result: RunResult) -> None:
        super().__init__()
        self.result = result

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: SandboxLimits | None = None,
    ) -> RunResult:
        return self.result

    async def session(self, *, language: Language = "python") -> SandboxSession:
        raise NotImplementedError("this fake has no sessions")


class PrintsAnswer(Checker):
    """Right when the program prints the task's answer; a broken sandbox is nobody's wrong answer."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    async def check(self, task: Task, trajectory: Trajectory) -> Score:
        result = await self.sandbox.run(trajectory.final_text)
        if result.status is Status.INFRA_ERROR:
            raise InfraError(InfraKind.SANDBOX, result.stderr)
        correct = result.status is Status.OK and result.stdout.strip() == task.answer
        return Score(float(correct), correct=correct, why=str(result.status))


def check(result: RunResult) -> Score:
    trajectory = Trajectory("t/0", None, "t", (Turn((), Action.of("print(7)")),))
    return asyncio.run(PrintsAnswer(CannedSandbox(result)).check(Task("t", answer="7"), trajectory))


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.INFRA_ERROR])
def test_how_a_program_ended_is_a_verdict(status: Status) -> None:
    score = check(RunResult(status, stdout="7\n"))
    assert score.correct is (status is Status.OK)
    assert score.why == str(status)


def test_a_broken_sandbox_is_a_failure_of_its_own_kind() -> None:
    with pytest.raises(InfraError, match="no place left") as caught:
        check(RunResult(Status.INFRA_ERROR, stderr="no place left"))
    assert caught.value.kind is InfraKind.SANDBOX
