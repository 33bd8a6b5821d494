"""Environments that do what their task tells them, and an engine that keeps a diary.

A task's data says how an episode goes: `turns`, and `do`, a mapping of "reset" or a turn number to one of the words
of `misbehave`. Importable by a child process, hence not in a conftest.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from plugym.config import RolloutSettings
from plugym.engine import Capabilities, Completion, GenerateRequest, Level
from plugym.env import AgentEnv, AnyEnv, AsyncAgentEnv, Observation, StepResult
from plugym.errors import BadInput, InfraError, InfraKind
from plugym.message import Action, Message
from plugym.rollout.driver import RolloutDriver
from plugym.rollout.handles import EnvFactory
from plugym.rollout.parsers import HermesParser
from plugym.rollout.scripted import ScriptedEngine
from plugym.task import Task, Taskset
from plugym.testing import CharTokenizer
from plugym.trajectory import Group, Status, Trajectory

RELEASE = threading.Event()
"""Set it to let every hanging thread go on."""

ALIVE: Counter[str] = Counter()
"""Instances of each class that were made and not closed (in this process)."""


def misbehave(what: str | None) -> Any:
    """Do `what`; returns something only for `garbage`."""
    match what:
        case "raise":
            raise ValueError("boom")
        case "bug":
            raise TypeError("a mistake in the code")
        case "exit":
            sys.exit(3)
        case "crash":
            os._exit(7)
        case "stop":
            raise StopIteration("early")
        case "sandbox":
            raise InfraError(InfraKind.SANDBOX, "the sandbox is gone")
        case "timeout":
            raise TimeoutError("the game server did not answer")
        case "hang":
            RELEASE.wait(60)
        case "garbage":
            return "this is no five-tuple"
    return None


class Script:
    """What all puppets share: the course of an episode."""

    task: Task
    turn: int
    rng: np.random.Generator

    def begin(self, task: Task, seed: int | None) -> tuple[Observation, dict[str, Any]]:
        self.task, self.turn, self.rng = task, 0, np.random.default_rng(seed)
        return (Message("user", f"{task.id} {self.rng.integers(1000)}"),), {}

    def answer(self, action: Action) -> StepResult:
        self.turn += 1
        done = self.turn >= self.task.data.get("turns", 1)
        info = {"outcome": 1.0} if done else {}
        return (Message("user", f"{action.text}? {self.rng.integers(1000)}"),), 0.0, done, False, info

    def order(self, when: str) -> str | None:
        return self.task.data.get("do", {}).get(when)


class Puppet(Script, AgentEnv):
    """Runs on a thread."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        ALIVE[type(self).__name__] += 1

    def __len__(self) -> int:
        return 0  # a container-like environment is falsy; nobody may take it for "not made yet"

    def tasks(self, split: str) -> Taskset:
        return Taskset([Task("unused")])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        first = self.begin(self.pick_task(options), seed)
        return misbehave(self.order("reset")) or first

    def step(self, action: Action) -> StepResult:
        result: StepResult = misbehave(self.order(str(self.turn))) or self.answer(action)
        return result

    def close(self) -> None:
        ALIVE[type(self).__name__] -= 1


class InlinePuppet(Puppet):
    isolation = "inline"


class ProcessPuppet(Puppet):
    isolation = "process"


class StuckProcessPuppet(ProcessPuppet):
    def close(self) -> None:
        raise BadInput("the save folder is read-only")


class AsyncPuppet(Script, AsyncAgentEnv):
    """The same as coroutines."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        ALIVE[type(self).__name__] += 1

    def tasks(self, split: str) -> Taskset:
        return Taskset([Task("unused")])

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        first = self.begin((options or {})["task"], seed)
        return await self._obey("reset") or first

    async def step(self, action: Action) -> StepResult:
        result: StepResult = await self._obey(str(self.turn)) or self.answer(action)
        return result

    async def _obey(self, when: str) -> Any:
        if self.order(when) == "hang":
            await asyncio.sleep(60)
        return misbehave(self.order(when))

    async def close(self) -> None:
        ALIVE[type(self).__name__] -= 1


class DiaryEngine(ScriptedEngine):
    """A scripted engine on characters that writes down what it was asked and how sessions came and went.

    `before(request)` is awaited before each answer: a place to sleep or to raise.
    """

    def __init__(
        self,
        script: Callable[[GenerateRequest, int], str] | None = None,
        *,
        tokenizer: CharTokenizer | None = None,
        max_context: int | None = None,
        before: Callable[[GenerateRequest], Awaitable[None]] | None = None,
        level: Level = Level.TOKENS,
    ) -> None:
        tokens = (tokenizer or CharTokenizer()) if level is Level.TOKENS else None
        super().__init__(script=script or _seeded_words, tokenizer=tokens)
        self._max_context = max_context
        self._before = before
        self.requests: list[GenerateRequest] = []
        self.completions: dict[str, list[Completion]] = {}
        self.announced: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.running = self.most_running = 0
        self._changed = asyncio.Condition()

    @property
    def capabilities(self) -> Capabilities:
        level = super().capabilities.level
        return Capabilities(level, max_context=self._max_context, images=level is Level.TEXT)

    def announce(self, sessions: Sequence[str]) -> None:
        self.announced.update(sessions)

    def end_session(self, session: str) -> None:
        self.ended[session] += 1
        super().end_session(session)

    async def busy(self, n: int) -> None:
        """Wait until `n` requests are being answered at the same time."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.running == n)

    async def generate(self, request: GenerateRequest) -> Completion:
        assert self.announced[request.session] == self.ended[request.session] + 1, "a request outside its session"
        self.requests.append(request)
        async with self._changed:
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            self._changed.notify_all()
        try:
            if self._before is not None:
                await self._before(request)
            completion = await super().generate(request)
        finally:
            self.running -= 1
        self.completions.setdefault(request.session, []).append(completion)
        return completion


def _seeded_words(request: GenerateRequest, turn: int) -> str:
    """Different in every episode and turn, and a function of the request's seed alone."""
    rng = np.random.default_rng(request.seed)
    return "".join(rng.choice(list("abc xyz\n")) for _ in range(int(rng.integers(1, 12))))


def settings(**changes: Any) -> RolloutSettings:
    """Settings for quick tests."""
    quick = {"tasks_per_step": 2, "group_size": 2, "retries": 0, "backoff": 0.0, "same_failure_share": 1.0}
    return RolloutSettings(**{**quick, **changes})


def driver(
    env: type[AnyEnv], engine: DiaryEngine, tasks: Sequence[Task] | None = None, *, seed: int = 0, **changes: Any
) -> RolloutDriver:
    """A driver of `env` with quick settings."""
    return RolloutDriver(
        engine=engine,
        env=EnvFactory(env),
        taskset=Taskset(tasks or [task("a"), task("b")]),
        settings=settings(**changes),
        parser=HermesParser(),
        seed=seed,
    )


def task(name: str, turns: int = 1, **do: str) -> Task:
    """`task("t", turns=2, reset="raise", at1="hang")`: what the puppet does at the reset and at turn 1."""
    return Task(name, env="puppet", data={"turns": turns, "do": {k.removeprefix("at"): v for k, v in do.items()}})


def play(source: RolloutDriver, tasks: Sequence[Task], n: int = 1) -> list[Group]:
    """Play `n` episodes of each task on a fresh loop and close the driver; groups by the order of their tasks."""

    async def main() -> list[Group]:
        try:
            return [group async for group in source.play(tasks, n)]
        finally:
            await source.close()

    return sorted(asyncio.run(main()), key=lambda group: group.id)


def one(env: type[AnyEnv], engine: DiaryEngine, about: Task, **changes: Any) -> Trajectory:
    """Play one episode."""
    (group,) = play(driver(env, engine, same_failure_limit=99, **changes), [about])
    (trajectory,) = group.trajectories
    return trajectory


def kind_of(trajectory: Trajectory) -> str:
    assert trajectory.failure is not None
    assert trajectory.status is Status.INFRA_FAILED
    return str(trajectory.failure.kind)


def wait_until(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether `condition` came true in time; for what other threads do."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
