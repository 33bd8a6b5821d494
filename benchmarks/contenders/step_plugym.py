"""Contender of grpo_step.py: plugym's local runner, with a reward and a hook of its own as a user would add them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepping import GROUP_SIZE, LEARNING_RATE, Clock, reward, setup

from plugym.config import Layers
from plugym.hooks import hookimpl
from plugym.registry import Registry, UserRegistry, registry, use_registry, validate_settings
from plugym.reward import RewardProvider, Score
from plugym.trajectory import Group


class HashReward(RewardProvider):
    """The benchmark's reward."""

    async def score(self, group: Group) -> list[Score]:
        return [Score(reward(trajectory.final_text)) for trajectory in group.trajectories]


class ClockHook:
    """Reads the clock after each update."""

    clock = Clock()

    @hookimpl
    def plugym_run_start(self) -> None:
        type(self).clock = Clock()

    @hookimpl
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self.clock.tick()
        self.clock.lengths.append(metrics["tokens/response_mean"])


def main() -> None:
    work: dict[str, Any] = setup()
    own = {"rewards": {"hash": f"{__name__}:HashReward"}, "hooks": {"clock": f"{__name__}:ClockHook"}}
    use_registry(Registry(UserRegistry(local=own)))
    layers = Layers()
    layers.add({"env": "math", "reward": ["hash"], "algo": "grpo", "model": work["model"]}, "benchmark")
    layers.add({"rollout": {"tasks_per_step": work["groups"], "group_size": GROUP_SIZE}}, "benchmark")
    layers.add({"rollout": {"max_turns": 1, "max_turn_tokens": work["tokens"]}}, "benchmark")
    layers.add({"train": {"method": work["method"], "lr": LEARNING_RATE}}, "benchmark")
    run = {"steps": work["steps"], "out": work["folder"], "hooks": ["clock"], "threads": 1, "checkpoint_every": 0}
    layers.add({"run": run}, "benchmark")
    spec = layers.spec()
    runner = registry().load("runners", "local")
    runner(spec, validate_settings(runner.Config, spec.train, prefix="--train.")).train()
    ClockHook.clock.report()


if __name__ == "__main__":
    main()
