"""The built-in checks: `math`, `choice`, `exact`, `outcome` (entry-point group `plugym.checkers`).

Each gives exactly one score per answer. Nothing a model writes can make a check raise.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Literal

from pydantic import BaseModel, Field

from plugym.checker import Checker
from plugym.errors import BadInput
from plugym.reward import Score
from plugym.task import Task
from plugym.trajectory import Trajectory
from plugym_rewards.verifier.algebra import AlgebraPool
from plugym_rewards.verifier.equal import Verdict, agrade_response
from plugym_rewards.verifier.extract import extract_answer

Extraction = Literal["auto", "boxed", "hash", "answer_tag", "last_number"]


def _gold(task: Task) -> str:
    if task.answer is None:
        raise BadInput(f"task {task.id!r} has no answer to check against: give its data an answer column")
    return task.answer


def _score(correct: bool, why: str, answer: str | None, **parts: float) -> Score:
    return Score(float(correct), correct=correct, parts=parts, why=why, answer=answer)


class MathConfig(BaseModel, extra="forbid"):
    """Settings of the `math` check."""

    extract: Extraction = Field("auto", description="where the answer stands in the text")
    algebra: bool | None = Field(
        None, description="decide with math-verify what exact arithmetic cannot; null = where it is installed"
    )
    workers: int = Field(1, ge=1, description="worker processes of math-verify")


class MathCheck(Checker):
    """Mathematical equality with the task's answer: exact arithmetic first, computer algebra for the rest."""

    Config = MathConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.settings = config if isinstance(config, MathConfig) else MathConfig()
        super().__init__(self.settings)
        installed = importlib.util.find_spec("math_verify") is not None
        if self.settings.algebra and not installed:
            raise BadInput("the math check needs math-verify for algebra: pip install 'plugym[math]'")
        wanted = installed if self.settings.algebra is None else self.settings.algebra
        self._algebra = AlgebraPool(self.settings.workers) if wanted else None

    async def check(self, task: Task, trajectory: Trajectory) -> Score:
        verdict: Verdict = await agrade_response(
            _gold(task), trajectory.final_text, self.settings.extract, algebra=self._algebra
        )
        return _score(verdict.correct, verdict.reason, verdict.answer, **{f"path_{verdict.path}": 1.0})

    async def close(self) -> None:
        if self._algebra is not None:
            self._algebra.close()


class ChoiceConfig(BaseModel, extra="forbid"):
    """Settings of the `choice` check."""

    letters: str = Field("ABCDEFGHIJ", description="letters that are options")


class ChoiceCheck(Checker):
    """One option letter: in the last box, after 'answer', or alone on the last line. Two letters are no answer."""

    Config = ChoiceConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.settings = config if isinstance(config, ChoiceConfig) else ChoiceConfig()
        super().__init__(self.settings)

    async def check(self, task: Task, trajectory: Trajectory) -> Score:
        letter = find_choice(trajectory.final_text, self.settings.letters)
        return _score(letter == _gold(task).strip().upper(), f"chose {letter or 'nothing'}", letter)


def find_choice(text: str, letters: str = "ABCDEFGHIJ") -> str | None:
    r"""The one option letter the text settles on.

    >>> find_choice("so it is \\boxed{\\text{(B)}}"), find_choice("The answer is C."), find_choice("A or B")
    ('B', 'C', None)
    """
    boxed = extract_answer(text, "boxed")
    if boxed is not None:
        return _single_letter(re.sub(r"\\(?:text|mathrm|mathbf|textbf)\b", "", boxed), letters)
    named = list(re.finditer(rf"(?i:answer|option|choice)(?:\s+is)?\s*:?\s*\**\(?([{letters}])\)?(?![A-Za-z])", text))
    if named:
        return named[-1].group(1)
    lines = [line for line in text.splitlines() if line.strip()]
    return _single_letter(lines[-1], letters) if lines else None


def _single_letter(slot: str, letters: str) -> str | None:
    match = re.fullmatch(rf"[\s({{\[*]*([{letters}{letters.lower()}])[\s)}}\]*.:]*", slot)
    return match.group(1).upper() if match else None


class ExactConfig(BaseModel, extra="forbid"):
    """Settings of the `exact` check."""

    extract: Extraction | None = Field(None, description="where the answer stands; null = the whole text")
    case_sensitive: bool = True


class ExactCheck(Checker):
    """The same text as the task's answer, surrounding and repeated white space aside."""

    Config = ExactConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.settings = config if isinstance(config, ExactConfig) else ExactConfig()
        super().__init__(self.settings)

    async def check(self, task: Task, trajectory: Trajectory) -> Score:
        text: str | None = trajectory.final_text
        if self.settings.extract is not None:
            text = extract_answer(trajectory.final_text, self.settings.extract)
        if text is None:
            return _score(False, "no answer found", None)
        answer = self._fold(text)
        correct = answer == self._fold(_gold(task))
        return _score(correct, "equal" if correct else "not equal", answer)

    def _fold(self, text: str) -> str:
        folded = " ".join(text.split())
        return folded if self.settings.case_sensitive else folded.casefold()


class OutcomeConfig(BaseModel, extra="forbid"):
    """Settings of the `outcome` check."""

    threshold: float = Field(1.0, ge=0, le=1, description="an outcome of at least this counts as correct")


class OutcomeCheck(Checker):
    """What the environment recorded at its end. An episode cut before that recorded nothing, which is 0: not solved."""

    Config = OutcomeConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.settings = config if isinstance(config, OutcomeConfig) else OutcomeConfig()
        super().__init__(self.settings)

    async def check(self, task: Task, trajectory: Trajectory) -> Score:
        outcome = trajectory.outcome if trajectory.outcome is not None else 0.0
        return Score(outcome, correct=outcome >= self.settings.threshold, why=f"outcome {outcome:g}")
