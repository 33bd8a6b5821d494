"""Environments: `AgentEnv` (a gymnasium environment over messages), its async twin, and optional abilities.

An environment gives tasks, starts an episode from one, and answers each assistant turn with new messages. It knows
nothing of tokens, rewards from judges, or training. Authors raise plain Python errors; the driver classifies them.

What `step` may put in its info dictionary (all optional):

    outcome           float in [0, 1], recorded at the end; what the `outcome` check reads
    anchor            str, names the state the turn was taken in (step-level groups)
    context           tuple of Messages that replaces the whole prompt of the next turn, new messages included
    executed_calls    int, tool calls really run in this step; successful_calls: those that did not fail
    agent_error       True when the policy's own mistake ended the episode
    counts            mapping of name -> number, added up over the episode
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import gymnasium
from pydantic import BaseModel

from plugym.message import Action, Message, ToolSpec
from plugym.spaces import AgentAction, Messages
from plugym.task import Task, Taskset

Observation = tuple[Message, ...]
Info = dict[str, Any]
StepResult = tuple[Observation, float, bool, bool, Info]
Isolation = Literal["inline", "thread", "process"]


class EnvConfig(BaseModel, extra="forbid"):
    """Base of environment settings: unknown keys are refused."""


class AgentEnv(gymnasium.Env[Observation, Action], ABC):
    """A synchronous environment, constructed as `Env(config)`.

    The observation is what is *new* since the last action. `options={"task": task}` picks the task; the same
    (task, seed) gives the same episode. `isolation` says where the driver may run it: `inline` for pure, fast code
    (microseconds, no I/O), `thread` for I/O, `process` for CPU-bound or non-thread-safe code; an instance may
    override its class.

    >>> class Guess(AgentEnv):
    ...     def tasks(self, split):
    ...         return Taskset([Task("guess/7", env="guess", instruction="Guess.", answer="7")])
    ...
    ...     def reset(self, *, seed=None, options=None):
    ...         super().reset(seed=seed)
    ...         self.task = self.pick_task(options)
    ...         return (Message("user", self.task.instruction),), {}
    ...
    ...     def step(self, action):
    ...         won = action.text == self.task.answer
    ...         return (), float(won), True, False, {"outcome": float(won)}
    >>> env = Guess()
    >>> _ = env.reset(seed=0)
    >>> env.step(Action.of("7"))[1]
    1.0
    """

    Config: ClassVar[type[BaseModel]] = EnvConfig
    isolation: Isolation = "thread"
    metadata = {"render_modes": []}  # noqa: RUF012 - gymnasium declares it as an instance variable
    picked_task: Task | None = None
    """The task of the running episode; `pick_task` sets it, and the gymnasium wrapper scores against it."""

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self.render_mode = None
        self.observation_space = Messages()
        self.action_space = AgentAction(tuple(tool.name for tool in self.tools()))

    @abstractmethod
    def tasks(self, split: str) -> Taskset:
        """Tasks of `split` (`train`, `eval`, ...). Raises `BadInput` for a split it does not have."""

    def tools(self) -> Sequence[ToolSpec]:
        """Tools the policy may call; empty for a text-only environment."""
        return ()

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        """Start an episode. Implementations call `super().reset(seed=seed)` first."""
        return super().reset(seed=seed, options=options)

    @abstractmethod
    def step(self, action: Action) -> StepResult:
        """Answer one assistant turn: (new messages, reward, terminated, truncated, info)."""

    def pick_task(self, options: Mapping[str, Any] | None) -> Task:
        """The task given in `options`, or one drawn with this episode's random generator."""
        if options and "task" in options:
            task: Task = options["task"]
        else:
            tasks = self.tasks("train")
            size = len(tasks) if tasks.finite else 2**31
            task = tasks[int(self.np_random.integers(size))]
        self.picked_task = task
        return task


class AsyncAgentEnv(ABC):
    """The same five-tuple as coroutines, for authors whose I/O is natively asynchronous."""

    Config: ClassVar[type[BaseModel]] = EnvConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    @abstractmethod
    def tasks(self, split: str) -> Taskset:
        """Tasks of `split`."""

    def tools(self) -> Sequence[ToolSpec]:
        """Tools the policy may call."""
        return ()

    @abstractmethod
    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Start an episode."""

    @abstractmethod
    async def step(self, action: Action) -> StepResult:
        """Answer one assistant turn."""

    async def close(self) -> None:
        """Free what the environment holds. Idempotent."""


AnyEnv = AgentEnv | AsyncAgentEnv


class Policy(Protocol):
    """Anything that acts on what it has seen: an oracle, a random player, a human at a prompt."""

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        """The next assistant turn after the whole conversation so far."""


class Oracle(ABC):
    """Mix-in: the environment can show how its tasks are won (tests, SFT traces, proofs of solvability)."""

    @abstractmethod
    def oracle(self, task: Task) -> Policy:
        """A scripted winner for `task`."""


S = TypeVar("S")


class Snapshots(Generic[S], ABC):  # in the order of gymnasium.Env, or the two do not mix
    """Mix-in: episodes can be saved in the middle and continued, for step-level credit and tree search."""

    @abstractmethod
    def snapshot(self) -> S:
        """The state of the running episode."""

    @abstractmethod
    def restore(self, state: S) -> None:
        """Continue from a snapshot."""


Direction = Literal["harder", "easier"]


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether a proposed task can be used, and how one knows."""

    valid: bool
    why: str
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class EvolveContext:
    """What an environment may use to rewrite a task: an engine, seeded randomness, and summaries of failures."""

    engine: Any
    rng: Any
    failures: tuple[str, ...] = field(default=())


class Evolvable(ABC):
    """Mix-in: the environment can make a task harder or easier. The SDK owns the loop, the environment the content."""

    @abstractmethod
    async def propose(self, task: Task, direction: Direction, ctx: EvolveContext) -> Task | None:
        """A changed task whose `parent` is `task.id`, or None when nothing fits."""

    @abstractmethod
    async def validate(self, task: Task) -> Proof:
        """Check a proposal before any rollout is spent on it."""
