"""Contender of rollout_overhead.py: plugym's driver, its `openai` engine and its `verifier`, as a run uses them.

A fifth argument says how much the engine asks of the server: `text` (what the peers ask for), `logprobs` or `tokens`.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from meter import main, questions

from plugym.config import RolloutSettings
from plugym.env import StepResult
from plugym.message import Action, Message
from plugym.rollout.driver import RolloutDriver
from plugym.rollout.handles import EnvFactory
from plugym.rollout.parsers import HermesParser
from plugym.scoring import score_group
from plugym.task import Check, Task, Taskset
from plugym.tools import ToolEnv, tool
from plugym_rewards.verifier import Verifier
from plugym_runners.engines.openai import OpenAIEngine
from plugym_runners.engines.settings import EndpointConfig


class SumEnv(ToolEnv):
    """One question; the turn without a call is the answer."""

    isolation = "inline"

    def tasks(self, split: str) -> Taskset:
        return Taskset([])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[tuple[Message, ...], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return (Message("user", self.pick_task(options).instruction),), {}

    def answer(self, action: Action) -> StepResult:
        return (), 0.0, True, False, {}


class CalculatingSumEnv(SumEnv):
    """The same with a tool."""

    @tool
    def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)


async def play(url: str, tools: bool, episodes: int, concurrency: int) -> int:
    ask: Any = sys.argv[5]
    check = Check("exact", {"extract": "boxed"})
    pairs = questions(episodes)
    tasks = [Task(f"sum/{i}", instruction=q, answer=a, check=check) for i, (q, a) in enumerate(pairs)]
    engine = OpenAIEngine(EndpointConfig(base_url=url, ask=ask, max_concurrent=concurrency))
    await engine.open()
    driver = RolloutDriver(
        engine=engine,
        env=EnvFactory(CalculatingSumEnv if tools else SumEnv),
        taskset=Taskset(tasks),
        settings=RolloutSettings(max_concurrent=concurrency),
        parser=HermesParser(),
    )
    reward = Verifier()
    right = 0
    scoring = [asyncio.create_task(score_group("verifier", reward, g)) async for g in driver.play(tasks, 1)]
    for scored in await asyncio.gather(*scoring):
        right += sum(score.correct is True for score in scored.scores)
    for part in (driver, reward, engine):
        await part.close()
    return right


if __name__ == "__main__":
    main(play)
