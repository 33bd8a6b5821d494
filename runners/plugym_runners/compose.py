"""From a `RunSpec` to the things it names: every plugin loaded, its settings validated, its tasks at hand.

This is where bad input is found: nothing has been written and no weights are loaded yet. `compose_play` is enough to
play and score episodes, `compose` adds what trains on them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from pydantic import BaseModel

from plugym.algorithm import Algorithm, Limits
from plugym.config import RunSpec
from plugym.engine import Engine
from plugym.env import AnyEnv
from plugym.errors import BadInput
from plugym.registry import registry, validate_settings
from plugym.reward import RewardProvider
from plugym.rollout.driver import RolloutDriver
from plugym.rollout.handles import EnvFactory
from plugym.rollout.parsers import Parser
from plugym.scoring import build_reward
from plugym.task import Taskset


@dataclass(slots=True)
class Play:
    """One environment and one reward, ready to be played. `spec` has every plugin setting spelled out."""

    spec: RunSpec
    env: EnvFactory
    probe: AnyEnv
    reward: RewardProvider
    parser: Parser
    engine_class: Any
    engine_config: BaseModel

    def tasks(self, split: str) -> Taskset:
        return self.probe.tasks(split)

    def driver(self, engine: Engine, tasks: Taskset) -> RolloutDriver:
        """The source that plays these tasks against an open engine."""
        return RolloutDriver(
            engine=engine,
            env=self.env,
            taskset=tasks,
            settings=self.spec.rollout,
            parser=self.parser,
            seed=self.spec.run.seed,
        )


@dataclass(slots=True)
class Composition(Play):
    """What is played, and the algorithm that learns from it."""

    algo: Algorithm
    limits: Limits


def compose(spec: RunSpec) -> Composition:
    """Load and validate everything the spec names. Raises `BadInput` with one clear line."""
    algo_class = registry().load("algos", spec.algo.name)
    algo_config = _settings(algo_class, spec.algo.settings, "--algo.", spec.algo.name)
    for name in spec.run.hooks:
        registry().find("hooks", name)
    play = compose_play(spec)
    play.spec.algo.settings = algo_config.model_dump(mode="json")
    rollout = spec.rollout
    limits = Limits(rollout.max_response_tokens, rollout.max_turn_tokens, rollout.max_turns)
    parts = {part.name: getattr(play, part.name) for part in fields(play)}
    return Composition(**parts, algo=algo_class(algo_config), limits=limits)


def compose_play(spec: RunSpec) -> Play:
    """Load and validate what plays and scores; the algorithm is not looked at. Raises `BadInput`."""
    found = registry()
    env_class = found.load("envs", spec.env.name)
    env = EnvFactory(env_class, _settings(env_class, spec.env.settings, "--env.", spec.env.name))
    engine_class = found.load("engines", spec.engine.name)
    engine_config = _settings(engine_class, spec.engine.settings, "--engine.", spec.engine.name)
    probe = env()
    parser_name = spec.rollout.parser
    if parser_name == "auto":
        parser_name = "hermes" if probe.tools() else "plain"
    reward = build_reward(spec.reward)
    return Play(
        spec=_resolved(spec, env.config, engine_config),
        env=env,
        probe=probe,
        reward=reward,
        parser=found.create("parsers", parser_name),
        engine_class=engine_class,
        engine_config=engine_config,
    )


def check_tasks(composition: Composition) -> None:
    """The splits a run will use exist and are not empty. Raises `BadInput`."""
    settings = composition.spec.eval
    composition.tasks("train")
    if settings.before or settings.after or settings.every:
        composition.tasks(settings.split)
    if composition.spec.rollout.group_size == 1 and not composition.algo.trains_singletons:
        raise BadInput(
            f"{composition.spec.algo.name} compares episodes of the same task: use --rollout.group_size 2 or more"
        )


def _settings(plugin: Any, settings: dict[str, Any], prefix: str, owner: str) -> Any:
    if "name" in plugin.Config.model_fields:
        raise BadInput(f"{owner} has a setting called 'name', where a run file says which plugin it is: rename it")
    return validate_settings(plugin.Config, settings, prefix=prefix, owner=owner)


def _resolved(spec: RunSpec, env: BaseModel | None, engine: BaseModel) -> RunSpec:
    spec = spec.model_copy(deep=True)
    if env is not None:
        spec.env.settings = env.model_dump(mode="json")
    spec.engine.settings = engine.model_dump(mode="json")
    for label, entry in spec.reward.items():
        plugin = registry().load("rewards", entry.plugin)
        config = validate_settings(plugin.Config, entry.settings, prefix=f"--reward.{label}.", owner=label)
        entry.settings = config.model_dump(mode="json")
    return spec
