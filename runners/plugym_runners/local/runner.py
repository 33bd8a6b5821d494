"""`LocalRunner`: what happens around the training loop - composing, loading, evaluating, checkpointing, ending."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from plugym.algorithm import Limits
from plugym.config import RunSpec, to_layer
from plugym.engine import Engine, Level
from plugym.errors import BadInput, PlugymError
from plugym.hooks import Hooks
from plugym.registry import registry
from plugym.reward import RewardContext
from plugym.rollout.driver import RolloutDriver
from plugym.runner import Finding, RunInfo, Runner
from plugym.store import RunDir
from plugym.tomlfile import dump_toml
from plugym_runners.compose import Composition, check_tasks, compose
from plugym_runners.evaluate import EvalResult, evaluate
from plugym_runners.local.learner import LearnerConfig, TorchLearner
from plugym_runners.local.loop import TrainLoop, save_state
from plugym_runners.local.models import LoadedModel, load_model, resolve_model

log = logging.getLogger("plugym.runner")


class LocalTrainConfig(LearnerConfig):
    """The `[train]` table of the local runner."""

    device: str = Field("cpu", description="torch device")
    updates: int = Field(1, ge=1, description="optimizer updates per step, each on a share of its groups")


@dataclass(slots=True)
class _Parts:
    """What lives as long as the run."""

    composition: Composition
    loaded: LoadedModel
    engine: Engine
    driver: RolloutDriver
    loop: TrainLoop
    dir: RunDir
    hooks: Hooks


class LocalRunner(Runner):
    """Trains with torch in this process."""

    Config = LocalTrainConfig

    def __init__(self, spec: RunSpec, config: BaseModel) -> None:
        super().__init__(spec, config)
        self.settings = config if isinstance(config, LocalTrainConfig) else LocalTrainConfig()

    def resolved(self) -> RunSpec:
        return self._compose().spec

    def _compose(self) -> Composition:
        composition = compose(self.spec)
        composition.spec.train = self.settings.model_dump(mode="json")
        resolve_model(self.spec.model)
        check_tasks(composition)
        return composition

    def dry_run(self) -> list[Finding]:
        from plugym_runners.local.dry_run import dry_run

        return dry_run(self._compose())

    def train(self) -> Mapping[str, Any]:
        import torch

        composition = self._compose()
        torch.set_num_threads(composition.spec.run.threads or _physical_cores())
        torch.manual_seed(composition.spec.run.seed)
        return asyncio.run(self._train(composition))

    async def _train(self, composition: Composition) -> Mapping[str, Any]:
        started = time.perf_counter()
        spec = composition.spec
        loaded = load_model(spec.model, dtype=self.settings.dtype, device=self.settings.device)
        run_dir = RunDir.create(Path(spec.run.out), spec.run_name())
        run_dir.write_config(dump_toml(to_layer(spec)))
        hooks = Hooks({name: registry().load("hooks", name)() for name in spec.run.hooks})
        with run_dir.logging() as attempt:
            info = RunInfo(run_dir.path, spec, attempt)
            hooks.call("plugym_run_start", run=info)
            outcome: dict[str, Any] = {"status": "failed", "dir": str(run_dir.path), "steps": 0}
            try:
                parts = await self._open(composition, loaded, run_dir, hooks)
                try:
                    outcome.update(await self._run(parts))
                    outcome["status"] = "done"
                finally:
                    await _close(parts)
            except BaseException as error:
                outcome["error"] = f"{type(error).__name__}: {error}"
                log.error("the run failed: %s", outcome["error"])
                raise
            finally:
                outcome["seconds"] = round(time.perf_counter() - started, 1)
                hooks.call("plugym_run_end", run=info, outcome=outcome)
        return outcome

    async def _open(self, composition: Composition, loaded: LoadedModel, run_dir: RunDir, hooks: Hooks) -> _Parts:
        spec = composition.spec
        rollout = spec.rollout
        composition.limits = Limits(
            rollout.max_response_tokens, rollout.max_turn_tokens, rollout.max_turns, loaded.max_context
        )
        needs = composition.algo.needs
        config = self.settings.model_copy(update={"total_steps": spec.run.steps * self.settings.updates})
        learner = TorchLearner(loaded, config, needs=needs, temperature=rollout.temperature)
        engine = composition.engine_class(composition.engine_config)
        if hasattr(engine, "bind"):
            engine.bind(loaded)
        await engine.open()
        if engine.capabilities.level is not Level.TOKENS:
            raise BadInput(
                f"engine {spec.engine.name!r} gives {engine.capabilities.level}, training needs exact tokens: "
                "use --engine hf"
            )
        driver = RolloutDriver(
            engine=engine,
            env=composition.env,
            taskset=composition.tasks("train"),
            settings=rollout,
            parser=composition.parser,
            seed=spec.run.seed,
        )
        rng = np.random.default_rng(spec.run.seed)
        await composition.reward.open(RewardContext(engines={"policy": engine}, rng=rng))
        loop = TrainLoop(composition, driver, engine, learner, hooks, updates=self.settings.updates)
        return _Parts(composition, loaded, engine, driver, loop, run_dir, hooks)

    async def _run(self, parts: _Parts) -> dict[str, Any]:
        spec = parts.composition.spec
        outcome: dict[str, Any] = {}
        if spec.eval.before:
            outcome["eval_before"] = (await self._eval(parts, 0)).accuracy
        for step in range(1, spec.run.steps + 1):
            metrics = await parts.loop.step(step)
            if spec.eval.every and step % spec.eval.every == 0 and step < spec.run.steps:
                metrics.update((await self._eval(parts, step)).metrics)
            parts.hooks.call("plugym_step_end", step=step, metrics=metrics)
            last = step == spec.run.steps
            if last or (spec.run.checkpoint_every and step % spec.run.checkpoint_every == 0):
                self._checkpoint(parts, step)
            outcome.update(steps=step, reward=metrics.get("reward/mean"))
        if spec.eval.after:
            outcome["eval_after"] = (await self._eval(parts, spec.run.steps)).accuracy
        return outcome

    async def _eval(self, parts: _Parts, step: int) -> EvalResult:
        settings = parts.composition.spec.eval
        tasks = parts.composition.tasks(settings.split)
        result = await evaluate(parts.driver, parts.composition.reward, tasks, settings)
        for group in result.groups:
            parts.hooks.call("plugym_group_scored", group=group)
        parts.dir.append_eval(step, result.metrics)
        log.info("evaluation at step %d: %s", step, result.metrics)
        return result

    def _checkpoint(self, parts: _Parts, step: int) -> None:
        spec = parts.composition.spec
        path = parts.dir.write_checkpoint(
            step, lambda path: save_state(parts.loop, step, path), keep=spec.run.keep_checkpoints
        )
        parts.hooks.call("plugym_checkpoint", path=path)


async def _close(parts: _Parts) -> None:
    """Everything is closed, also when closing one of them fails; the first error is raised at the end."""
    errors: list[BaseException] = []
    for part in (parts.driver, parts.composition.reward, parts.engine):
        try:
            await part.close()
        except Exception as error:
            errors.append(error)
    if errors:
        raise PlugymError(f"closing failed: {errors[0]}") from errors[0]


def _physical_cores() -> int:
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
