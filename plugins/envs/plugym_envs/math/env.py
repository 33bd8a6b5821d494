"""`MathEnv`: its settings, how a problem becomes a prompt, and the course of an episode.

Without tools an episode is one turn: the problem, the answer, the end. With tools the policy may call them until it
answers in a turn without a call, or `max_steps` turns have passed. Where the problems come from is `procedural` and
`data`; whether an answer is right is decided later by the check `math` that each task names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from plugym.env import Isolation, Observation, Oracle, Policy, StepResult
from plugym.errors import BadInput
from plugym.message import Action, Message, ToolSpec
from plugym.task import Check, Task, Taskset
from plugym.tools import ToolEnv, ToolEnvConfig

from .data import PresetName, read_problems
from .procedural import LEVELS, problems

Extract = Literal["boxed", "hash", "answer_tag", "last_number", "auto"]

SPLITS = ("train", "eval", "all")


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """How the prompt asks for an answer (not at all where any text will do), and an answer written that way."""

    request: str
    example: str


FORMATS: Mapping[str, AnswerFormat] = {
    "boxed": AnswerFormat("Put the final answer in \\boxed{}.", "The answer is \\boxed{{{answer}}}."),
    "hash": AnswerFormat('End with a line of "####" and the final answer.', "#### {answer}"),
    "answer_tag": AnswerFormat("Put the final answer between <answer> and </answer>.", "<answer>{answer}</answer>"),
    "last_number": AnswerFormat("", "{answer}"),
    "auto": AnswerFormat("", "The answer is \\boxed{{{answer}}}."),
}


class MathConfig(ToolEnvConfig):
    """Settings of the `math` environment. Validation names the option, so field order matters: a check looks back."""

    level: int = Field(
        0,
        ge=0,
        le=len(LEVELS) - 1,
        description="built-in problems: 0 single-digit sums, 1 two-digit sums, 2 products, 3 two-step word problems",
    )
    held_out: int = Field(
        40,
        ge=1,
        validate_default=True,
        description="built-in problems: ordered operand pairs never trained on, commuted pairs together",
    )
    data: Path | None = Field(None, description="JSONL file to take the problems from, in place of the built-in ones")
    preset: PresetName = Field("auto", description="columns of the file: those of a known data set; auto recognises it")
    question_column: str | None = Field(None, description="column of the question, in place of the preset's")
    answer_column: str | None = Field(None, description="column of the answer, in place of the preset's")
    eval_share: float = Field(
        0.1, ge=0, lt=1, description="share of the file that is held out for evaluation, by a hash of the question"
    )
    extract: Extract | None = Field(
        None,
        description=r"where the answer stands: last \boxed{}, after ####, in <answer> tags, the last number, "
        "auto = the first of these found; default: last_number for built-in problems, boxed for a file",
    )
    system: str | None = Field(
        "",
        description="system message; empty sends an empty one, which keeps a chat template from adding its own; "
        "none sends no system message",
    )
    instruction: str | None = Field(
        None,
        description="prompt, with {question} where the problem goes; default: the problem, then a request for the "
        "answer format that extract needs",
    )
    seed: int = Field(
        0, ge=0, description="order of the tasks; of the built-in problems, also which pairs are held out"
    )
    n_tasks: int | None = Field(None, ge=1, description="use only the first so many training problems")
    max_steps: int = Field(8, ge=1, description="with tools: assistant turns after which the episode is cut")

    @field_validator("held_out")
    @classmethod
    def _leaves_pairs_to_train_on(cls, value: int, info: ValidationInfo) -> int:
        level = info.data.get("level")
        if level is not None and value >= len(LEVELS[level].operands) ** 2:
            raise ValueError(f"level {level} has {len(LEVELS[level].operands) ** 2} operand pairs; hold out fewer")
        return value

    @field_validator("preset", "question_column", "answer_column")
    @classmethod
    def _goes_with_a_file(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value not in (None, "auto") and info.data.get("data") is None:
            raise ValueError("it says how to read a file, but data names none")
        return value

    @field_validator("instruction")
    @classmethod
    def _has_a_place_for_the_problem(cls, value: str | None) -> str | None:
        if value is not None and "{question}" not in value:
            raise ValueError("it must contain {question}, the place of the problem")
        return value

    @property
    def extraction(self) -> Extract:
        """`extract`, or what suits the source of the problems."""
        return self.extract or ("last_number" if self.data is None else "boxed")

    def prompt(self, question: str) -> str:
        """The user message for a question."""
        if self.instruction is not None:
            return self.instruction.replace("{question}", question)
        return f"{question}\n\n{FORMATS[self.extraction].request}".rstrip()


@dataclass(frozen=True, slots=True)
class Recite:
    """The policy that always says the same text."""

    text: str

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        return Action.of(self.text)


class MathEnv(ToolEnv, Oracle):
    """Mathematical problems with a final answer.

    >>> env = MathEnv()
    >>> task = env.tasks("eval")[0]
    >>> messages, _ = env.reset(seed=0, options={"task": task})
    >>> [message.role for message in messages], len(env.tasks("eval")), len(env.tasks("train"))
    (['system', 'user'], 200, 300)
    >>> env.step(env.oracle(task).act(messages, env.tools()))[1:]
    (0.0, True, False, {})
    """

    Config = MathConfig
    isolation: Isolation = "inline"
    config: MathConfig

    def __init__(self, config: MathConfig | None = None) -> None:
        super().__init__(config)
        if self.config.tools:
            # A tool may wait for something; then the episode must not hold up the others.
            self.isolation = "thread"
        self._tasksets: dict[str, Taskset] = {}
        self._turns = 0

    def tasks(self, split: str) -> Taskset:
        """`train`, `eval` (the held-out problems) or `all`, in the order that `seed` gives.

        Raises `BadInput` for another split, a file that cannot be used, or a split without problems.
        """
        if split not in SPLITS:
            raise BadInput(f"math has no split {split!r}: choose {', '.join(SPLITS)}")
        if split not in self._tasksets:
            chosen = [task for task in self._problems if split in ("all", task.split)]
            if not chosen:
                raise BadInput(
                    f"{self.config.data}: none of {len(self._problems)} problems is in split {split!r}: "
                    "change eval_share or use split 'all'"
                )
            tasks = Taskset(chosen).shuffle(self.config.seed)
            if split == "train" and self.config.n_tasks is not None:
                tasks = tasks.take(self.config.n_tasks)
            self._tasksets[split] = tasks
        return self._tasksets[split]

    @cached_property
    def _problems(self) -> list[Task]:
        config = self.config
        if config.data is None:
            source = problems(config.level, held_out=config.held_out, seed=config.seed)
        else:
            source = read_problems(
                config.data,
                preset=config.preset,
                question_column=config.question_column,
                answer_column=config.answer_column,
                eval_share=config.eval_share,
            )
        check = Check("math", {"extract": config.extraction})
        return [replace(task, instruction=config.prompt(task.instruction), check=check) for task in source]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.task = self.pick_task(options)
        self._turns = 0
        problem = Message("user", self.task.instruction)
        if self.config.system is None:
            return (problem,), {}
        return (Message("system", self.config.system), problem), {}

    def step(self, action: Action) -> StepResult:
        """Answer a turn. Who calls a tool where there is none is told so, and has answered all the same."""
        messages, reward, terminated, _, info = super().step(action)
        self._turns += 1
        terminated = terminated or not self.tools()
        truncated = not terminated and self._turns >= self.config.max_steps
        return messages, reward, terminated, truncated, info

    def answer(self, action: Action) -> StepResult:
        return (), 0.0, True, False, {}

    def oracle(self, task: Task) -> Policy:
        """Says the reference answer in the format the task's check looks for."""
        extract = task.check.args.get("extract", "auto") if task.check else self.config.extraction
        return Recite(FORMATS[extract].example.format(answer=task.answer))
