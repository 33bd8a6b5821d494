"""An environment that makes its tasks harder and easier, checks its proposals, and can show how each is won."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from puppets import DiaryEngine, driver, play

from plugym.env import (
    AgentEnv,
    Direction,
    Evolvable,
    EvolveContext,
    Info,
    Observation,
    Oracle,
    Policy,
    Proof,
    Snapshots,
    StepResult,
)
from plugym.errors import BadInput
from plugym.message import Action, Message, ToolSpec
from plugym.rollout.scripted import ScriptedEngine
from plugym.task import Task, Taskset
from plugym.trajectory import Purpose


class Say:
    def __init__(self, text: str) -> None:
        self.text = text

    def act(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Action:
        return Action.of(self.text)


class Count(AgentEnv, Evolvable, Oracle, Snapshots[int]):
    """Say the number of letters; harder is a longer word, which an engine may suggest."""

    isolation = "inline"

    def tasks(self, split: str) -> Taskset:
        if split not in ("train", "eval"):
            raise BadInput(f"no split {split!r}: use train or eval")
        return Taskset([_task("oak"), _task("ant")])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.tries = 0
        return (Message("user", self.pick_task(options).instruction),), {}

    def step(self, action: Action) -> StepResult:
        assert self.picked_task is not None
        self.tries += 1
        won = action.text == self.picked_task.answer
        return (Message("user", "no"),), float(won), won, self.tries == 3, {"outcome": float(won)}

    async def propose(self, task: Task, direction: Direction, ctx: EvolveContext) -> Task | None:
        word = task.data["word"]
        if direction == "easier":
            changed = word[:-1]
        else:
            from plugym.engine import GenerateRequest

            request = GenerateRequest(messages=(Message("user", f"Lengthen {word}"),), seed=int(ctx.rng.integers(99)))
            changed = word + (await ctx.engine.generate(request)).text
        if not changed:
            return None
        revision = task.revision + 1
        return dataclasses.replace(_task(changed), id=f"{task.id}~{revision}", parent=task.id, revision=revision)

    async def validate(self, task: Task) -> Proof:
        if not task.data["word"].isalpha():
            return Proof(False, "not a word")
        return Proof(True, "the oracle wins it", self.oracle(task))

    def oracle(self, task: Task) -> Policy:
        return Say(str(len(task.data["word"])))

    def snapshot(self) -> int:
        return self.tries

    def restore(self, state: int) -> None:
        self.tries = state


def _task(word: str) -> Task:
    return Task(
        f"count/{word}", env="count", instruction=f"Letters in {word}?", data={"word": word}, answer=str(len(word))
    )


def context(suggestion: str) -> EvolveContext:
    return EvolveContext(ScriptedEngine(script=lambda request, turn: suggestion), np.random.default_rng(0), ("said 4",))


def test_a_proposal_names_its_parent_and_revision() -> None:
    env = Count()
    parent = env.tasks("train")[0]
    harder = asyncio.run(env.propose(parent, "harder", context("tree")))
    assert harder is not None
    assert (harder.parent, harder.revision, harder.answer) == (parent.id, 1, "7")
    again = asyncio.run(env.propose(harder, "easier", context("")))
    assert again is not None
    assert (again.parent, again.revision) == (harder.id, 2)
    assert len({parent.id, harder.id, again.id}) == 3, "results of different revisions are never mixed up"
    assert asyncio.run(env.propose(_task("a"), "easier", context(""))) is None


def test_a_valid_proposal_is_proved_by_a_policy_that_wins_it() -> None:
    env = Count()
    harder = asyncio.run(env.propose(env.tasks("train")[0], "harder", context("tree")))
    assert harder is not None
    proof = asyncio.run(env.validate(harder))
    assert proof.valid
    assert proof.policy is not None
    messages, _ = env.reset(seed=0, options={"task": harder})
    assert env.step(proof.policy.act(messages, env.tools()))[1:3] == (1.0, True)

    nonsense = asyncio.run(env.propose(env.tasks("train")[0], "harder", context("-42")))
    assert nonsense is not None
    assert asyncio.run(env.validate(nonsense)) == Proof(False, "not a word")


def test_a_candidate_is_tried_out_by_its_own_rollouts() -> None:
    env = Count()
    harder = asyncio.run(env.propose(env.tasks("train")[0], "harder", context("tree")))
    assert harder is not None

    async def main() -> list[Any]:
        source = driver(Count, DiaryEngine(lambda request, turn: "7"))
        try:
            return [g async for g in source.play([harder], 2, purpose=Purpose.CANDIDATE)]
        finally:
            await source.close()

    (group,) = asyncio.run(main())
    assert group.purpose is Purpose.CANDIDATE
    assert group.id == "candidate:000000:count/oak~1"
    assert [t.outcome for t in group.trajectories] == [1.0, 1.0]


def test_revisions_of_a_task_are_played_under_seeds_of_their_own() -> None:
    first, second = _task("oak"), dataclasses.replace(_task("oak"), revision=1)
    engine = DiaryEngine()
    play(driver(Count, engine), [first])
    play(driver(Count, engine), [second])
    seeds = [request.seed for request in engine.requests]
    assert len(set(seeds)) == len(seeds)


def test_an_episode_goes_on_from_a_snapshot() -> None:
    env = Count()
    env.reset(seed=0, options={"task": _task("oak")})
    env.step(Action.of("1"))
    state = env.snapshot()
    env.step(Action.of("2"))
    assert env.step(Action.of("4"))[3], "cut at the third try"
    env.restore(state)
    assert not env.step(Action.of("2"))[3]


def test_a_split_it_does_not_have_is_bad_input() -> None:
    with pytest.raises(BadInput, match="no split 'test': use train or eval"):
        Count().tasks("test")
