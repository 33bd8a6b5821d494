"""`gymnasium.make("plugym/Math-v0", reward="verifier")`: an environment plugin and a reward, as one gymnasium env.

Registration reads metadata only; nothing is imported before `make`. The reward arrives on the step that ends the
episode: the wrapper builds the trajectory of the episode and asks the provider, also inside a running event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, SupportsFloat, TypeVar

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from plugym.engine import Engine
from plugym.env import AgentEnv, AsyncAgentEnv, Observation, StepResult
from plugym.errors import BadInput, RewardError
from plugym.message import Action
from plugym.registry import registry
from plugym.reward import RewardContext, RewardProvider, check_scores
from plugym.task import Task, Taskset
from plugym.trajectory import Group, StopReason, TokenStream, Trajectory, Turn, stream_of

T = TypeVar("T")


class LoopThread:
    """An event loop on a thread of its own, for synchronous code that needs coroutines, also where a loop is running
    already. One object keeps one loop for all its calls, because connections belong to the loop that made them."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="plugym-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The coroutine's result; its exception is raised here."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        """Stop the loop and its thread. Idempotent."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class SyncEnv(AgentEnv):
    """An asynchronous environment as a gymnasium one."""

    def __init__(self, env: AsyncAgentEnv) -> None:
        self._env = env
        self._thread: LoopThread | None = LoopThread()
        super().__init__(env.config)

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            coroutine.close()
            raise RuntimeError("the environment is closed")
        return self._thread.run(coroutine)

    def tasks(self, split: str) -> Taskset:
        return self._env.tasks(split)

    def tools(self) -> Any:
        return self._env.tools()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._wait(self._env.reset(seed=seed, options={**(options or {}), "task": self.pick_task(options)}))

    def step(self, action: Action) -> StepResult:
        return self._wait(self._env.step(action))

    def close(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                thread.run(self._env.close())
            finally:
                thread.close()


class RewardWrapper(gymnasium.Wrapper[Observation, Action, Observation, Action], RecordConstructorArgs):
    """Replaces the environment's reward by a provider's score, given on the last step of the episode.

    `reward` is the name of a reward plugin with its settings, or a provider (then the environment's spec cannot be
    written as JSON). An episode that cannot be scored raises `RewardError`: a training loop must not take it for a
    reward of 0.
    """

    def __init__(
        self,
        env: gymnasium.Env[Observation, Action],
        reward: str | RewardProvider,
        reward_settings: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
    ) -> None:
        RecordConstructorArgs.__init__(
            self, _disable_deepcopy=True, reward=reward, reward_settings=reward_settings, engine=engine
        )
        gymnasium.Wrapper.__init__(self, env)
        self._provider: RewardProvider = (
            registry().create("rewards", reward, reward_settings or {}) if isinstance(reward, str) else reward
        )
        self._name = reward if isinstance(reward, str) else type(reward).__name__
        self._engines: Mapping[str, Engine] = {"judge": engine} if engine is not None else {}
        self._thread: LoopThread | None = None
        self._turns: list[Turn] = []
        self._new: Observation = ()
        self._task: Task | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = self.env.reset(seed=seed, options=options)
        self._turns, self._new = [], observation
        self._task = (options or {}).get("task") or getattr(self.env.unwrapped, "picked_task", None)
        return observation, info

    def step(self, action: Action) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, env_reward, terminated, truncated, info = self.env.step(action)
        self._turns.append(
            Turn(
                self._new,
                action,
                float(env_reward),
                info.get("anchor"),
                executed_calls=int(info.get("executed_calls", 0)),
                successful_calls=int(info.get("successful_calls", 0)),
            )
        )
        self._new = observation
        if not (terminated or truncated):
            return observation, 0.0, terminated, truncated, info
        return observation, self._scored(terminated, info), terminated, truncated, info

    def _scored(self, terminated: bool, info: Mapping[str, Any]) -> float:
        if self._thread is None:
            self._thread = LoopThread()
            self._thread.run(self._provider.open(RewardContext(engines=self._engines)))
        return self._thread.run(self._score(terminated, info))

    async def _score(self, terminated: bool, info: Mapping[str, Any]) -> float:
        trajectory = Trajectory(
            id="gym/0",
            task=self._task,
            group_id="gym",
            turns=tuple(self._turns),
            streams=(_no_tokens(),),
            outcome=info.get("outcome"),
            stop_reason=StopReason.ENV_DONE if terminated else StopReason.ENV_TRUNCATED,
            closing=self._new,
            level="text",
        )
        group = Group("gym", self._task, (trajectory,), source="gymnasium")
        score = check_scores(self._name, self._provider, group, await self._provider.score(group))[0]
        if score.value is None:
            raise RewardError(f"{self._name} could not score the episode: {score.why}")
        return score.value

    def close(self) -> None:
        if self._thread is not None:
            thread, self._thread = self._thread, None
            try:
                thread.run(self._provider.close())
            finally:
                thread.close()
        super().close()


def _no_tokens() -> TokenStream:
    return stream_of([], trainable=False)


def make_env(
    plugin: str,
    reward: str | None = None,
    reward_settings: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    **settings: Any,
) -> gymnasium.Env[Observation, Action]:
    """What `gymnasium.make` calls: the environment plugin with its settings, wrapped with the reward plugin.

    Raises `PluginError` for an unknown or ambiguous name, `BadInput` for bad settings.
    """
    env = registry().create("envs", plugin, settings)
    if isinstance(env, AsyncAgentEnv):
        env = SyncEnv(env)
    if not isinstance(env, AgentEnv):
        raise BadInput(f"environment {plugin!r} is not an AgentEnv or AsyncAgentEnv")
    if reward is None:
        return env
    return RewardWrapper(env, reward, reward_settings, engine)
