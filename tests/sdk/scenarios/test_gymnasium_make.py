"""`gymnasium.make("plugym/Math-v0", reward="verifier")`: any environment plugin as a gymnasium environment."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from builders import install
from gymnasium.utils.env_checker import check_env

import plugym
from plugym.engine import Engine
from plugym.errors import PluginError, RewardError
from plugym.gym import RewardWrapper, SyncEnv
from plugym.message import Action, Message
from plugym.registration import gym_id, register_envs
from plugym.reward import RewardContext, RewardProvider, Score, reward
from plugym.rollout.scripted import ScriptedEngine
from plugym.task import Check, Task
from plugym.trajectory import Group, StopReason, Trajectory

pytestmark = pytest.mark.usefixtures("own_registry")

ECHO = """
from plugym import AgentEnv, Action, AsyncAgentEnv, EnvConfig, Message, Task, Taskset
from plugym.reward import RewardConfig, RewardProvider, Score

class EchoConfig(EnvConfig):
    turns: int = 2

class Echo(AgentEnv):
    Config = EchoConfig

    def tasks(self, split):
        return Taskset([Task("echo/a", instruction="Say a.", answer="a"), Task("echo/b", answer="b")])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = self.config.turns
        return (Message("user", self.pick_task(options).id),), {}

    def step(self, action):
        self.left -= 1
        return (Message("user", "more"),), 0.5, self.left == 0, False, {}

class Slow(AsyncAgentEnv):
    closed = 0

    def tasks(self, split):
        return Taskset([Task("slow/a", answer="a")])

    async def reset(self, *, seed=None, options=None):
        self.task, self.given = options["task"], options
        return (Message("user", self.task.id),), {}

    async def step(self, action):
        return (), 1.0, True, False, {}

    async def close(self):
        type(self).closed += 1

class Says(RewardProvider):
    range = (0.0, 1.0)

    async def score(self, group):
        return [Score(float(t.final_text == t.task.answer)) for t in group.trajectories]
"""


@pytest.fixture
def echo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A third-party distribution with three environments and a reward, registered as if it had been installed."""
    before = set(gymnasium.registry)
    points = {
        "envs": {"echo_game": "echo_mod:Echo", "slow": "echo_mod:Slow", "tic.tac toe": "echo_mod:Echo"},
        "rewards": {"says": "echo_mod:Says"},
    }
    install(tmp_path, monkeypatch, "echo-dist", points, echo_mod=ECHO)
    register_envs()
    yield
    for name in set(gymnasium.registry) - before:
        del gymnasium.registry[name]


def quietly_checked(env: gymnasium.Env[Any, Any]) -> None:
    with warnings.catch_warnings():
        # gymnasium advises against checking a wrapped environment; the wrapper is what is checked here
        warnings.filterwarnings("ignore", message=".*different from the unwrapped version.*")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("options", [{}, {"reward": "verifier"}])
def test_math_passes_the_environment_checker(options: dict[str, Any]) -> None:
    env = gymnasium.make("plugym/Math-v0", **options)
    quietly_checked(env)
    env.close()


def test_math_is_scored_by_the_verifier() -> None:
    env = gymnasium.make("plugym/Math-v0", reward="verifier")
    for seed in range(3):
        env.reset(seed=seed)
        right = env.unwrapped.picked_task.answer  # type: ignore[attr-defined]
        assert env.step(Action.of(right))[1:3] == (1.0, True)
        env.reset(seed=seed)
        assert env.step(Action.of("-99999"))[1] == 0.0
    env.close()
    env.close()


def test_the_task_can_be_given() -> None:
    env = gymnasium.make("plugym/Math-v0", reward="verifier")
    given = Task("mine", instruction="6*7?", answer="42", check=Check("math", {"extract": "last_number"}))
    (*_, question), _ = env.reset(seed=0, options={"task": given})
    assert question == Message("user", "6*7?")
    assert env.step(Action.of("42"))[1] == 1.0
    env.close()


def test_it_works_inside_a_running_event_loop() -> None:
    async def main() -> list[float]:
        env = gymnasium.make("plugym/Math-v0", reward="verifier")
        rewards = []
        for seed in (0, 1):
            env.reset(seed=seed)
            answer = env.unwrapped.picked_task.answer  # type: ignore[attr-defined]
            rewards.append(float(env.step(Action.of(answer))[1]))
        env.close()
        return rewards

    assert asyncio.run(main()) == [1.0, 1.0]


@pytest.mark.usefixtures("echo")
def test_a_third_party_environment_with_its_reward() -> None:
    assert gym_id("echo_game") == "plugym/EchoGame-v0"
    env = gymnasium.make("plugym/EchoGame-v0", reward="says", turns=2)
    quietly_checked(env)
    env.reset(seed=0, options={"task": Task("t", answer="b")})
    assert env.step(Action.of("a"))[1:4] == (0.0, False, False)
    assert env.step(Action.of("b"))[1:4] == (1.0, True, False)
    env.reset(seed=0)
    env.step(Action.of("x"))
    picked = env.unwrapped.picked_task  # type: ignore[attr-defined]
    assert env.step(Action.of(picked.answer))[1] == 1.0, "scored against the task that was drawn"
    env.close()
    assert gymnasium.make("plugym/EchoGame-v0").reset(seed=0)[0][0].role == "user"


@pytest.mark.usefixtures("echo")
def test_a_name_that_no_gymnasium_id_can_have_is_registered_under_a_clean_one() -> None:
    assert gymnasium.make("plugym/TicTacToe-v0").reset(seed=0)


@pytest.mark.usefixtures("echo")
def test_an_asynchronous_environment_is_a_gymnasium_one_too() -> None:
    before = threading.active_count()
    env = gymnasium.make("plugym/Slow-v0", reward="says")
    inner = env.unwrapped
    assert isinstance(inner, SyncEnv)
    env.reset(seed=0)
    assert env.step(Action.of("a"))[1] == 1.0
    env.reset(seed=0, options={"task": Task("given", answer="z"), "level": 3})
    assert inner._env.given["level"] == 3, "options that are not ours go through"  # type: ignore[attr-defined]
    assert env.step(Action.of("z"))[1] == 1.0
    env.close()
    env.close()
    assert type(inner._env).closed == 1  # type: ignore[attr-defined]
    assert threading.active_count() == before
    with pytest.raises(RuntimeError, match=r"closed"):
        inner.step(Action.of("a"))


@pytest.mark.usefixtures("echo")
def test_a_duplicate_name_fails_at_make_and_not_at_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "other", monkeypatch, "other-dist", {"envs": {"echo_game": "echo_mod:Echo"}})
    register_envs()
    with pytest.raises(PluginError, match=r"2 plugins are called 'echo_game'.*echo_game@echo-dist or echo_game@other"):
        gymnasium.make("plugym/EchoGame-v0")
    assert gymnasium.make("plugym/EchoGame-v0", plugin="echo_game@other-dist").reset(seed=0)


def test_importing_registers_from_metadata_without_importing_a_plugin(tmp_path: Path) -> None:
    info = tmp_path / "trap_dist-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: trap-dist\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[plugym.envs]\ntrap = trap_mod:Trap\n++ = trap_mod:Trap\n")
    (tmp_path / "trap_mod.py").write_text("raise SystemExit('imported')\n")
    code = (
        "import sys, gymnasium, plugym; assert 'plugym/Trap-v0' in gymnasium.registry;"
        "assert not [m for m in sys.modules if m == 'trap_mod' or m.startswith('plugym_envs')]; print('fine')"
    )
    path = [str(tmp_path), *(entry for entry in sys.path if entry)]
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "fine\n", result.stderr


def test_bad_settings_and_rewards_are_one_clear_line() -> None:
    for options, problem in [
        ({"lvel": 2}, "math has no option lvel; did you mean level?"),
        ({"level": "high"}, "option level of math"),
        ({"reward": "verifyer"}, "unknown reward 'verifyer': did you mean 'verifier'?"),
    ]:
        with pytest.raises(PluginError) as caught:
            gymnasium.make("plugym/Math-v0", **options)
        assert problem in str(caught.value)


def test_the_spec_makes_the_same_environment_again() -> None:
    env = gymnasium.make("plugym/Math-v0", reward="verifier", held_out=30)
    assert env.spec is not None
    text = env.spec.to_json()
    for spec in (env.spec, gymnasium.envs.registration.EnvSpec.from_json(text)):
        again = gymnasium.make(spec)
        assert again.spec == env.spec
        assert again.reset(seed=5)[0] == env.reset(seed=5)[0]
        answer = env.unwrapped.picked_task.answer  # type: ignore[attr-defined]
        assert again.step(Action.of(answer))[1] == 1.0
        again.close()
    wrapper = json.loads(text)["additional_wrappers"][0]
    assert wrapper["kwargs"] == {"reward": "verifier", "reward_settings": None, "engine": None}
    env.close()


class NeedsEngine(RewardProvider):
    """Asks the judge's engine, and notes the loops it was called on."""

    def __init__(self) -> None:
        super().__init__()
        self.loops: set[int] = set()
        self.seen: list[Trajectory] = []
        self.engine: Engine | None = None

    async def open(self, ctx: RewardContext) -> None:
        self.loops.add(id(asyncio.get_running_loop()))
        self.engine = ctx.engines.get("judge")

    async def score(self, group: Group) -> list[Score]:
        self.loops.add(id(asyncio.get_running_loop()))
        self.seen.extend(group.trajectories)
        return [Score(0.25)]

    async def close(self) -> None:
        self.loops.add(id(asyncio.get_running_loop()))


def test_a_provider_lives_on_one_loop_and_gets_the_engine() -> None:
    """Its connections belong to the loop that made them: a loop per episode would break the second one."""
    provider, engine = NeedsEngine(), ScriptedEngine()
    env = RewardWrapper(gymnasium.make("plugym/Math-v0"), provider, engine=engine)
    for seed in range(2):
        env.reset(seed=seed)
        assert env.step(Action.of("1"))[1] == 0.25
    env.close()
    assert len(provider.loops) == 1
    assert provider.engine is engine
    assert [t.level for t in provider.seen] == ["text", "text"]
    assert all(t.task is not None and t.stop_reason is StopReason.ENV_DONE for t in provider.seen)


def test_an_engine_is_handed_on_not_copied() -> None:
    engine = ScriptedEngine()
    env = gymnasium.make("plugym/Math-v0", reward="verifier", engine=engine)
    assert env.spec is not None
    again = gymnasium.make(env.spec)
    assert again.spec is not None
    assert again.spec.additional_wrappers[0].kwargs["engine"] is engine


@pytest.mark.parametrize("answer", [None, float("nan")])
def test_an_episode_that_cannot_be_scored_raises(answer: float | None) -> None:
    provider = reward(lambda trajectory: answer)()
    env = RewardWrapper(gymnasium.make("plugym/Math-v0"), provider)
    env.reset(seed=0)
    with pytest.raises(RewardError):
        env.step(Action.of("7"))
    env.close()


def test_the_id_is_camel_case_of_the_name() -> None:
    assert [gym_id(name) for name in ("math", "web_shop", "sciWorld", "a-b_c")] == [
        "plugym/Math-v0",
        "plugym/WebShop-v0",
        "plugym/SciWorld-v0",
        "plugym/ABC-v0",
    ]
    assert plugym.__version__
