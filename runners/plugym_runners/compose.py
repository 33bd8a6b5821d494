"""From a `RunSpec` to the things it names: every plugin loaded, its settings validated, its tasks at hand.

This is where bad input is found: nothing has been written and no weights are loaded yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from plugym.algorithm import Algorithm, Limits
from plugym.config import RunSpec
from plugym.env import AnyEnv
from plugym.errors import BadInput
from plugym.registry import registry, validate_settings
from plugym.reward import RewardProvider
from plugym.rollout.handles import EnvFactory
from plugym.rollout.parsers import Parser
from plugym.scoring import build_reward
from plugym.task import Taskset


@dataclass(slots=True)
class Composition:
    """One environment, one reward, one algorithm, ready to be run. `spec` has every plugin setting spelled out."""

    spec: RunSpec
    env: EnvFactory
    probe: AnyEnv
    reward: RewardProvider
    algo: Algorithm
    parser: Parser
    engine_class: Any
    engine_config: BaseModel
    limits: Limits

    def tasks(self, split: str) -> Taskset:
        return self.probe.tasks(split)


def compose(spec: RunSpec) -> Composition:
    """Load and validate everything the spec names. Raises `BadInput` with one clear line."""
    found = registry()
    env_class = found.load("envs", spec.env.name)
    env = EnvFactory(env_class, _settings(env_class, spec.env.settings, "--env.", spec.env.name))
    algo_class = found.load("algos", spec.algo.name)
    algo_config = _settings(algo_class, spec.algo.settings, "--algo.", spec.algo.name)
    engine_class = found.load("engines", spec.engine.name)
    engine_config = _settings(engine_class, spec.engine.settings, "--engine.", spec.engine.name)
    probe = env()
    parser_name = spec.rollout.parser
    if parser_name == "auto":
        parser_name = "hermes" if probe.tools() else "plain"
    reward = build_reward(spec.reward)
    for name in spec.run.hooks:
        found.find("hooks", name)
    rollout = spec.rollout
    return Composition(
        spec=_resolved(spec, env.config, algo_config, engine_config),
        env=env,
        probe=probe,
        reward=reward,
        algo=algo_class(algo_config),
        parser=found.create("parsers", parser_name),
        engine_class=engine_class,
        engine_config=engine_config,
        limits=Limits(rollout.max_response_tokens, rollout.max_turn_tokens, rollout.max_turns),
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
    return validate_settings(plugin.Config, settings, prefix=prefix, owner=owner)


def _resolved(spec: RunSpec, env: BaseModel | None, algo: BaseModel, engine: BaseModel) -> RunSpec:
    spec = spec.model_copy(deep=True)
    if env is not None:
        spec.env.settings = env.model_dump(mode="json")
    spec.algo.settings = algo.model_dump(mode="json")
    spec.engine.settings = engine.model_dump(mode="json")
    for label, entry in spec.reward.items():
        plugin = registry().load("rewards", entry.plugin)
        config = validate_settings(plugin.Config, entry.settings, prefix=f"--reward.{label}.", owner=label)
        entry.settings = config.model_dump(mode="json")
    return spec
