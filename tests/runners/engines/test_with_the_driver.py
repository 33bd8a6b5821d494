"""An endpoint under the rollout driver: what it says becomes trajectories, what it fails to say infra_failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_server import Fake, says
from harness import opened

from plugym.config import RolloutSettings
from plugym.errors import InfraKind, RunStopped
from plugym.registry import registry
from plugym.rollout.driver import RolloutDriver
from plugym.rollout.handles import EnvFactory
from plugym.trajectory import StopReason, Trajectory


def play(fake: Fake, loaded: Any = None, n: int = 4, script: Any = (), **settings: Any) -> list[Trajectory]:
    """`n` episodes of one task of the math environment."""
    env_class = registry().load("envs", "math")
    env = EnvFactory(env_class, env_class.Config())
    tasks = env().tasks("train")

    async def go() -> list[Trajectory]:
        async with opened(fake, loaded, **settings) as engine:
            fake.script.extend(script)
            driver = RolloutDriver(
                engine=engine,
                env=env,
                taskset=tasks,
                settings=RolloutSettings(max_turn_tokens=32, backoff=0.01, retries=0, same_failure_share=0.5),
                parser=registry().create("parsers", "plain"),
            )
            try:
                groups = [group async for group in driver.play(list(tasks.take(1)), n)]
            finally:
                await driver.close()
            return list(groups[0].trajectories)

    return asyncio.run(go())


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_episodes_carry_the_servers_tokens_and_can_be_trained_on(loaded: Any, api: str) -> None:
    for trajectory in play(Fake(), loaded, api=api):
        assert trajectory.stop_reason is StopReason.ENV_DONE
        assert trajectory.level == "tokens"
        (stream,) = trajectory.streams
        assert stream.trainable
        assert stream.logprobs[stream.loss_mask].tolist() == [-0.5] * 5
        assert trajectory.turns[0].action.text == "fine"


def test_text_without_tokens_cannot_be_trained_on() -> None:
    for trajectory in play(Fake(), ask="text"):
        assert trajectory.level == "text"
        assert not trajectory.streams[0].trainable


def test_a_full_context_ends_an_episode_without_a_failure() -> None:
    full = says({"error": {"message": "maximum context length is 40 tokens, your request has 50 input tokens"}}, 400)
    for trajectory in play(Fake(), script=[full] * 4):
        assert trajectory.failure is None
        assert trajectory.trained_tokens == 0
        assert all(stream.trainable for stream in trajectory.streams), "the rest of the batch can still be trained on"


def test_a_failure_of_the_server_is_infra_and_nothing_else() -> None:
    trajectories = play(Fake(), script=[says({"choices": []})], retries=0)
    failed = [trajectory for trajectory in trajectories if trajectory.infra_failed]
    assert len(failed) == 1
    assert failed[0].failure is not None
    assert failed[0].failure.kind is InfraKind.ENGINE
    assert "returned 0 choices" in failed[0].failure.message
    assert failed[0].streams == ()


def test_an_endpoint_that_fails_everybody_stops_the_run() -> None:
    with pytest.raises(RunStopped, match=r"4 of 4 episodes failed alike.*quota exceeded"):
        play(Fake(), script=[says({"error": {"message": "quota exceeded"}}, 402)] * 4)
