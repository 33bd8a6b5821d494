"""An evaluation as a run of its own: a directory that fills while episodes finish, goes on after a crash, and can be
scored again later.

    runs/<name>/config.toml, evaluation.json       settings; the policy and the fingerprint of the tasks
                trajectories/eval-000000.jsonl.gz  one group a task, in task order when it is finished
                evals.jsonl, outcome.json          metrics under the names of a run; the report

How tasks are played and scored is `evaluate`, what the numbers mean is `estimates`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plugym.config import RunSpec, to_layer
from plugym.engine import Engine
from plugym.errors import BadInput
from plugym.reward import RewardContext, RewardProvider
from plugym.scoring import build_reward, score_group
from plugym.store import GroupLog, RunDir, read_groups
from plugym.task import Taskset
from plugym.tomlfile import dump_toml
from plugym.trajectory import ScoredGroup
from plugym_runners.compose import Play, compose_play
from plugym_runners.estimates import Summary, average, summarise
from plugym_runners.evaluate import eval_metrics, evaluate
from plugym_runners.policies import POLICIES, PolicyName, policy_engine

log = logging.getLogger("plugym_runners.evaluation")

Progress = Callable[[int, int, float | None], None]
"""Told (tasks done, tasks in all, share of right answers of the last one) as they finish."""


@dataclass(frozen=True, slots=True)
class Report:
    """What an evaluation found, and under which settings."""

    dir: Path
    spec: RunSpec
    policy: PolicyName
    summary: Summary
    seconds: float

    def to_json(self) -> dict[str, Any]:
        settings = self.spec.eval
        return {
            "dir": str(self.dir),
            "policy": self.policy,
            "model": self.spec.model if self.policy == "model" else None,
            "env": self.spec.env.name,
            "reward": list(self.spec.reward),
            "split": settings.split,
            "temperature": settings.temperature,
            **self.summary.to_json(),
            "seconds": self.seconds,
        }


def run_evaluation(spec: RunSpec, policy: PolicyName, progress: Progress) -> Report:
    """Evaluate from the start, in a new run directory. Raises `BadInput` before anything is written."""
    play = compose_play(spec)
    tasks = _tasks(play)
    engine = _engine(play, policy, tasks)
    who = policy if policy != "model" else Path(spec.model).name
    run = _new_run(play.spec, spec.run.name or f"eval-{spec.env.name}-{who}", policy, tasks.fingerprint())
    return _go_on(run, play, policy, tasks, engine, progress)


def resume_evaluation(path: Path, progress: Progress) -> Report:
    """Go on with an evaluation: what is finished is kept, what failed for reasons of infrastructure is played again.

    Batches of the engine differ from those of an uninterrupted evaluation, and with them the last digits of log-probs.
    Raises `BadInput` where `path` is no evaluation, or where its tasks have changed since.
    """
    run = RunDir.open(path)
    policy, fingerprint = read_evaluation(run)
    play = compose_play(run.read_spec())
    tasks = _tasks(play)
    if tasks.fingerprint() != fingerprint:
        raise BadInput(f"the tasks of {path} have changed since it was started: evaluate from the start")
    return _go_on(run, play, policy, tasks, None, progress)


def rescore(path: Path, spec: RunSpec, progress: Progress) -> Report:
    """Score the stored episodes of the last evaluation in `path` with the reward of `spec`, in a new run directory.

    Raises `BadInput` where there are none, or the reward needs more than the episodes.
    """
    source = RunDir.open(path)
    stored = [file for file in source.group_files() if file.name.startswith("eval-")]
    if not stored:
        raise BadInput(f"{path} holds no evaluated episodes: there is nothing to score again")
    groups = list(read_groups(stored[-1]))
    reward = build_reward(spec.reward)
    for group in groups:
        for trajectory in group.group.trajectories:
            if not trajectory.infra_failed and not reward.can_rescore(trajectory):
                raise BadInput(
                    f"reward {'+'.join(spec.reward)} needs more than the stored episode of {trajectory.id}: only "
                    "stateless checks can score again"
                )
    started = time.perf_counter()
    scored = asyncio.run(_score_again(reward, groups, spec.run.seed, progress))
    policy = read_evaluation(source)[0] if (path / "evaluation.json").is_file() else "model"
    tasks = Taskset(group.group.task for group in groups if group.group.task is not None)
    run = _new_run(spec, f"{path.resolve().name}-rescored", policy, tasks.fingerprint())
    with run.logging():
        return _finish(run, spec, policy, scored, started)


async def _score_again(
    reward: RewardProvider, groups: Sequence[ScoredGroup], seed: int, progress: Progress
) -> list[ScoredGroup]:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(reward.close)
        await reward.open(RewardContext(rng=np.random.default_rng(seed)))
        scored: list[ScoredGroup] = []
        for group in groups:
            scored.append(await score_group("eval", reward, group.group))
            progress(len(scored), len(groups), average(scored[-1]))
        return scored


def _tasks(play: Play) -> Taskset:
    return play.tasks(play.spec.eval.split).take(play.spec.eval.n_tasks)


def _engine(play: Play, policy: PolicyName, tasks: Taskset) -> Engine:
    """The engine behind a policy, not open yet. An engine that takes weights is given the model's."""
    if policy != "model":
        return policy_engine(policy, play.probe, tasks)
    engine: Engine = play.engine_class(play.engine_config)
    if hasattr(engine, "bind"):
        from plugym_runners.local.policy import load_policy, use_threads

        use_threads(play.spec.run.threads)
        where = play.engine_config.model_dump(include={"dtype", "device"})
        engine.bind(load_policy(play.spec.model, **where))
    return engine


def _new_run(spec: RunSpec, name: str, policy: PolicyName, fingerprint: str) -> RunDir:
    run = RunDir.create(Path(spec.run.out), re.sub(r"[^A-Za-z0-9._-]+", "-", name))
    about = {"schema": 1, "policy": policy, "tasks": fingerprint}
    (run.path / "evaluation.json").write_text(json.dumps(about) + "\n", encoding="utf-8")
    run.write_config(dump_toml(to_layer(spec)))
    return run


def is_evaluation(run: RunDir) -> bool:
    """Whether a run directory is that of an evaluation."""
    return (run.path / "evaluation.json").is_file()


def read_evaluation(run: RunDir) -> tuple[PolicyName, str]:
    """(policy, fingerprint of the tasks). Raises `BadInput` where `run` is no evaluation."""
    path = run.path / "evaluation.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        policy, fingerprint = about["policy"], about["tasks"]
    except FileNotFoundError as error:
        raise BadInput(f"{run.path} is a training run, not an evaluation: runner resume {run.path}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"cannot read {path}: {type(error).__name__}: {error}") from error
    if policy not in POLICIES:
        raise BadInput(f"{path}: unknown policy {policy!r}; valid are {', '.join(POLICIES)}")
    return policy, str(fingerprint)


def _go_on(
    run: RunDir, play: Play, policy: PolicyName, tasks: Taskset, engine: Engine | None, progress: Progress
) -> Report:
    """Play what is not done, then report. `engine` None: made here, if there is something to play."""
    started = time.perf_counter()
    with run.logging():
        episodes = run.group_log()
        stored, cut = episodes.read()
        if cut:
            log.warning("the last episodes of %s were cut and are played again", episodes.path)
        done = [group for group in stored if not _failed(group)]
        if len(done) == len(tasks):
            if run.read_outcome() is not None:
                log.warning("%s is finished: there is nothing to resume", run.path)
                return Report(run.path, play.spec, policy, summarise(done, play.spec.eval.n), 0.0)
            return _finish(run, play.spec, policy, done, started)
        if stored:
            log.warning("%d of %d tasks are done, the others are played", len(done), len(tasks))
        episodes.replace(done)
        engine = engine or _engine(play, policy, tasks)
        groups = asyncio.run(_play(play, engine, tasks, done, episodes, progress))
        return _finish(run, play.spec, policy, groups, started)


def _failed(group: ScoredGroup) -> bool:
    """Whether infrastructure kept an episode of the group from being played or scored."""
    pairs = zip(group.group.trajectories, group.scores, strict=True)
    return any(t.infra_failed or (s.value is None and s.why.startswith("infra/")) for t, s in pairs)


async def _play(
    play: Play, engine: Engine, tasks: Taskset, done: list[ScoredGroup], episodes: GroupLog, progress: Progress
) -> Sequence[ScoredGroup]:
    count = len(done)

    def keep(group: ScoredGroup) -> None:
        nonlocal count
        count += 1
        try:
            episodes.append(group)
        except TypeError as error:
            raise BadInput(f"an evaluation keeps its episodes: {error}") from error
        progress(count, len(tasks), average(group))

    async with AsyncExitStack() as stack:  # closes everything, also where closing one of them fails
        stack.push_async_callback(engine.close)
        await engine.open()
        stack.push_async_callback(play.reward.close)
        rng = np.random.default_rng(play.spec.run.seed)
        await play.reward.open(RewardContext(engines={"policy": engine}, rng=rng))
        driver = play.driver(engine, tasks)
        stack.push_async_callback(driver.close)
        result = await evaluate(driver, play.reward, tasks, play.spec.eval, done=done, on_group=keep)
    return result.groups


def _finish(run: RunDir, spec: RunSpec, policy: PolicyName, groups: Sequence[ScoredGroup], started: float) -> Report:
    """Put the episodes into the order of the tasks and write what was found."""
    run.group_log().replace(groups)
    run.evals_path.unlink(missing_ok=True)  # of an earlier attempt
    run.append_eval(0, eval_metrics(groups, spec.eval.n))
    report = Report(run.path, spec, policy, summarise(groups, spec.eval.n), round(time.perf_counter() - started, 1))
    run.write_outcome(report.to_json())
    return report
