"""`LocalRunner`: what happens around the training loop - composing, loading, evaluating, checkpointing, ending."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from plugym.algorithm import Limits
from plugym.config import RunSpec, to_layer
from plugym.engine import Engine, Level
from plugym.errors import BadInput, PlugymError, RunStopped
from plugym.hooks import Hooks
from plugym.registry import registry
from plugym.reward import RewardContext
from plugym.rollout.driver import RolloutDriver
from plugym.runner import Finding, RunInfo, Runner
from plugym.store import ResumePoint, RunDir, find_resume_point, rewind
from plugym.tomlfile import dump_toml
from plugym_runners.compose import Composition, check_tasks, compose
from plugym_runners.evaluate import ACCURACY, evaluate
from plugym_runners.local.loop import TrainLoop, rekey, restore_state, save_state
from plugym_runners.local.models import LoadedModel, load_model, resolve_model
from plugym_runners.local.policy import use_threads
from plugym_runners.local.settings import LocalTrainConfig

log = logging.getLogger("plugym.runner")


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
        if not composition.engine_class.follows_policy:
            raise BadInput(
                f"engine {self.spec.engine.name!r} cannot take new weights, so it cannot train: use --engine hf"
            )
        resolve_model(self.spec.model)
        check_tasks(composition)
        return composition

    def dry_run(self) -> list[Finding]:
        from plugym_runners.local.dry_run import dry_run

        return dry_run(self._compose())

    def train(self) -> Mapping[str, Any]:
        return self._start(self._compose(), None)

    def resume(self, path: Path) -> Mapping[str, Any]:
        run_dir = RunDir.open(path)
        outcome = run_dir.read_outcome()
        if outcome is not None:
            log.warning("%s is finished: there is nothing to resume", path)
            return outcome
        return self._start(self._compose(), run_dir)

    def _start(self, composition: Composition, run_dir: RunDir | None) -> Mapping[str, Any]:
        use_threads(composition.spec.run.threads)
        _seed(composition.spec.run.seed)
        return asyncio.run(self._train(composition, run_dir))

    async def _train(self, composition: Composition, run_dir: RunDir | None) -> Mapping[str, Any]:
        """A new run, or with `run_dir` the rest of an interrupted one."""
        started = time.perf_counter()
        spec = composition.spec
        loaded = load_model(spec.model, dtype=self.settings.dtype, device=self.settings.device)
        engine = await _open_engine(composition, loaded)
        if run_dir is None:
            run_dir = RunDir.create(Path(spec.run.out), spec.run_name())
            run_dir.write_config(dump_toml(to_layer(spec)))
        hooks = Hooks({name: registry().load("hooks", name)() for name in spec.run.hooks})
        with run_dir.logging() as attempt:
            point = find_resume_point(run_dir)
            rewind(run_dir, point)
            if attempt > 1:
                log.info("attempt %d goes on after step %d", attempt, point.step)
            info = RunInfo(run_dir.path, spec, attempt)
            hooks.call("plugym_run_start", run=info)
            outcome: dict[str, Any] = {"status": "failed", "dir": str(run_dir.path), "steps": point.step}
            try:
                parts = await self._open(composition, loaded, engine, run_dir, hooks)
                try:
                    outcome.update(await self._run(parts, point))
                    outcome["status"] = "done"
                finally:
                    await _close(parts)
                outcome["seconds"] = round(time.perf_counter() - started, 1)
                run_dir.write_outcome(outcome)
            except BaseException as error:
                outcome.update(status="failed", error=f"{type(error).__name__}: {error}")
                outcome["seconds"] = round(time.perf_counter() - started, 1)
                log.error("the run failed: %s", outcome["error"])
                raise
            finally:
                hooks.call("plugym_run_end", run=info, outcome=outcome)
        return outcome

    async def _open(
        self, composition: Composition, loaded: LoadedModel, engine: Engine, run_dir: RunDir, hooks: Hooks
    ) -> _Parts:
        from plugym_runners.local.learner import TorchLearner

        spec = composition.spec
        rollout = spec.rollout
        composition.limits = Limits(
            rollout.max_response_tokens, rollout.max_turn_tokens, rollout.max_turns, loaded.max_context
        )
        needs = composition.algo.needs
        config = self.settings.model_copy(update={"total_steps": spec.run.steps * self.settings.updates})
        learner = TorchLearner(loaded, config, needs=needs, temperature=rollout.temperature)
        driver = composition.driver(engine, composition.tasks("train"))
        rng = np.random.default_rng(spec.run.seed)
        await composition.reward.open(RewardContext(engines={"policy": engine}, rng=rng))
        loop = TrainLoop(composition, driver, engine, learner, hooks, updates=self.settings.updates, rng=rng)
        return _Parts(composition, loaded, engine, driver, loop, run_dir, hooks)

    async def _run(self, parts: _Parts, point: ResumePoint) -> dict[str, Any]:
        spec = parts.composition.spec
        outcome: dict[str, Any] = {"steps": point.step}
        if spec.eval.before:
            outcome["eval_before"] = (await self._eval(parts, 0)).get(ACCURACY)
        if point.checkpoint is not None:
            await restore_state(parts.loop, point.checkpoint, point.state)
            outcome["reward"] = _last_reward(parts.dir)
        else:
            _seed(spec.run.seed)  # again: a resumed run does not repeat the evaluation before
        for step in range(point.step + 1, spec.run.steps + 1):
            metrics = await parts.loop.step(step)
            if spec.eval.every and step % spec.eval.every == 0 and step < spec.run.steps:
                metrics.update(await self._eval(parts, step))
            parts.hooks.call("plugym_step_end", step=step, metrics=metrics)
            last = step == spec.run.steps
            if last or (spec.run.checkpoint_every and step % spec.run.checkpoint_every == 0):
                self._checkpoint(parts, step)
            outcome.update(steps=step, reward=metrics.get("reward/mean"))
        if spec.eval.after:
            outcome["eval_after"] = (await self._eval(parts, spec.run.steps)).get(ACCURACY)
        return outcome

    async def _eval(self, parts: _Parts, step: int) -> Mapping[str, float]:
        """Metrics of the weights after `step` updates; an evaluation that has its line is not repeated."""
        for row in parts.dir.read_evals().rows:
            if row["step"] == step:
                return {name: value for name, value in row.items() if name != "step"}
        settings = parts.composition.spec.eval
        rekey(parts.loop.rng, parts.composition.spec.run.seed, "eval", step)
        tasks = parts.composition.tasks(settings.split)
        result = await evaluate(parts.driver, parts.composition.reward, tasks, settings)
        for group in result.groups:
            parts.hooks.call("plugym_group_scored", group=group)
        parts.hooks.call("plugym_eval_end", step=step, metrics=result.metrics)
        parts.dir.append_eval(step, result.metrics)
        log.info("evaluation at step %d: %s", step, result.metrics)
        return result.metrics

    def _checkpoint(self, parts: _Parts, step: int) -> None:
        """Raises `RunStopped` when it cannot be written (a full disk says so in many ways); the last one stays."""
        keep = parts.composition.spec.run.keep_checkpoints
        try:
            path = parts.dir.write_checkpoint(step, lambda path: save_state(parts.loop, step, path), keep=keep)
        except PlugymError:
            raise
        except Exception as error:
            last = parts.dir.latest_checkpoint()
            kept = f"{last.name} is whole" if last else "there is none yet"
            raise RunStopped(
                f"checkpoint of step {step} cannot be written: {error}; {kept}: make room, then "
                f"'runner resume {parts.dir.path}'"
            ) from error
        parts.hooks.call("plugym_checkpoint", path=path)


def _seed(seed: int) -> None:
    """Every global generator that a learner saves with a checkpoint."""
    import torch

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _last_reward(run_dir: RunDir) -> float | None:
    rows = run_dir.read_metrics().rows
    return rows[-1].get("reward/mean") if rows else None


async def _open_engine(composition: Composition, loaded: LoadedModel) -> Engine:
    """The engine, ready. Raises `BadInput` when it cannot serve this training; nothing has been written by then."""
    name = composition.spec.engine.name
    engine: Engine = composition.engine_class(composition.engine_config)
    if hasattr(engine, "bind"):
        engine.bind(loaded)
    await engine.open()
    if engine.capabilities.level is not Level.TOKENS:
        raise BadInput(
            f"engine {name!r} gives {engine.capabilities.level}, training needs exact tokens: use --engine hf"
        )
    return engine


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
