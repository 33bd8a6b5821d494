"""A run that was interrupted and resumed ends with the metrics of one that was not; damage is found and said."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from plugym.config import Layers, RunSpec, flag_layer
from plugym.errors import BadInput, RunStopped
from plugym.registry import validate_settings
from plugym.store import RunDir, read_groups
from plugym.store.sealed import damage
from plugym_runners.local.loop import TrainLoop
from plugym_runners.local.runner import LocalRunner

SETTINGS = {
    "rollout.tasks_per_step": "2",
    "rollout.group_size": "4",
    "rollout.max_turn_tokens": "8",
    "train.lora_dropout": "0.2",
    "train.betas": "[0.8, 0.9]",
    "train.lr": "1e-3",
    "run.steps": "5",
    "run.checkpoint_every": "2",
    "run.threads": "1",
    "run.hooks": "store",
    "eval.before": "true",
    "eval.after": "true",
    "eval.every": "3",
    "eval.n_tasks": "4",
}
RUN = {"env": "math", "reward": "verifier", "algo": "grpo_tcr", "model": "tiny"}


def make(spec: RunSpec) -> LocalRunner:
    return LocalRunner(spec, validate_settings(LocalRunner.Config, spec.train, prefix="--train."))


def started(tmp_path: Path, name: str, **flags: str) -> LocalRunner:
    layers = Layers()
    layers.add(flag_layer([*(RUN | SETTINGS | flags).items(), ("out", str(tmp_path)), ("name", name)]), "flag")
    return make(layers.spec())


def resumed(run: Path) -> LocalRunner:
    return make(RunDir.open(run).read_spec())


def lines(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith("time/")} for row in rows]


def interrupted(runner: LocalRunner, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Train until step `at` is done but not noted."""
    step = TrainLoop.step

    async def crash(self: TrainLoop, number: int) -> dict[str, float]:
        metrics = await step(self, number)
        if number == at:
            raise KeyboardInterrupt
        return metrics

    with monkeypatch.context() as patch:
        patch.setattr(TrainLoop, "step", crash)
        with pytest.raises(KeyboardInterrupt):
            runner.train()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    return Path(started(folder, "whole").train()["dir"])


@pytest.mark.parametrize("at", [1, 5])
def test_a_resumed_run_ends_with_the_same_lines(
    tmp_path: Path, whole: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(started(tmp_path, "cut"), at, monkeypatch)
    run = tmp_path / "cut"
    assert len(lines(run, "evals.jsonl")) == (1 if at == 1 else 2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9')
    outcome = resumed(run).resume(run)
    assert (outcome["status"], outcome["steps"]) == ("done", 5)
    assert lines(run) == lines(whole)
    assert lines(run, "evals.jsonl") == lines(whole, "evals.jsonl")
    assert {path.name for path in RunDir(run).group_files()} == {path.name for path in RunDir(whole).group_files()}
    last = [list(read_groups(path / "trajectories" / "step-000005.jsonl.gz")) for path in (run, whole)]
    versions = [[t.streams[0].policy_versions.max() for g in groups for t in g.group.trajectories] for groups in last]
    assert versions[0] == versions[1]
    assert (run / "logs" / "attempt-2.log").is_file()
    assert outcome["reward"] == lines(whole)[-1]["reward/mean"]


def test_the_evaluation_before_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(started(tmp_path, "cut", **{"run.steps": "1", "eval.after": "false"}), 1, monkeypatch)

    async def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("evaluated again")

    monkeypatch.setattr("plugym_runners.local.runner.evaluate", never)
    outcome = resumed(tmp_path / "cut").resume(tmp_path / "cut")
    assert outcome["eval_before"] == lines(tmp_path / "cut", "evals.jsonl")[0]["eval/avg@k"]


def test_a_finished_run_says_so_and_nothing_changes(whole: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    outcome = resumed(whole).resume(whole)
    assert outcome == RunDir(whole).read_outcome()
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before
    assert "is finished: there is nothing to resume" in caplog.text


def test_a_damaged_checkpoint_is_said_and_the_one_before_is_used(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(started(tmp_path, "cut"), 5, monkeypatch)
    run = tmp_path / "cut"
    weights = run / "checkpoints" / "step-000004" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    resumed(run).resume(run)
    assert re.search(r"step-000004 is damaged and passed over: adapter_model\.safetensors has", caplog.text)
    assert lines(run) == lines(whole)
    assert not damage(run / "checkpoints" / "step-000004")


def test_the_train_table_comes_back_from_config_toml(whole: Path) -> None:
    settings = resumed(whole).settings
    assert (settings.betas, settings.lora_dropout, settings.total_steps) == ((0.8, 0.9), 0.2, None)
    with (whole / "config.toml").open() as file:
        assert "betas = [0.8, 0.9]" in file.read()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("checkpoint_every", "checkpoint_evry", r"config\.toml: unknown option --run\.checkpoint_evry: did you mean"),
        ("lora_rank", "lora_rnk", r"no option --train\.lora_rnk; did you mean --train\.lora_rank"),
        ("lora_rank = 16", "lora_rank = 8", "was saved with lora_rank = 16, this learner has 8"),
    ],
)
def test_a_config_that_does_not_fit_is_bad_input(tmp_path: Path, whole: Path, old: str, new: str, message: str) -> None:
    run = tmp_path / "changed"
    subprocess.run(["cp", "-r", str(whole), str(run)], check=True)
    (run / "outcome.json").unlink()
    config = run / "config.toml"
    config.write_text(config.read_text().replace(old, new))
    kept = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(BadInput, match=message):
        resumed(run).resume(run)
    assert (run / "metrics.jsonl").read_bytes() == kept


def test_a_full_disk_leaves_the_last_checkpoint_and_can_be_resumed(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = torch.save

    def full(value: Any, path: Path) -> None:
        if "step-000004" in str(path) and path.name == "rng.pt":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(value, path)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full)
        with pytest.raises(RunStopped, match="No space left on device; step-000002 is whole: make room") as stopped:
            started(tmp_path, "full").train()
    assert stopped.value.exit_code == 1
    run = RunDir(tmp_path / "full")
    assert list(run.checkpoints()) == [2]
    assert damage(run.checkpoints()[2]) == ""
    resumed(run.path).resume(run.path)
    assert lines(run.path) == lines(whole)


# A process that has torch in memory and forks a child for each command line: importing takes longer than the runs do.
FORKS = """
import json, os, signal, sys, time
from pathlib import Path
import peft, torch, transformers
import plugym_runners.local.runner
from plugym_runners.cli import main
for line in sys.stdin:
    args, run, kill_after = json.loads(line)
    child = os.fork()
    if not child:
        os.dup2(2, 1)
        main(args)
    began = None
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if began is None and Path(run, "config.toml").exists():
            began = time.monotonic()
        if kill_after is not None and began is not None and time.monotonic() - began >= kill_after:
            os.kill(child, signal.SIGKILL)
            kill_after = None
        time.sleep(0.002)
    print(json.dumps([os.waitstatus_to_exitcode(status), time.monotonic() - (began or time.monotonic())]), flush=True)
"""


class Forks:
    """Runs command lines, with or without a SIGKILL so many seconds after the run directory is there."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("w")
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def run(self, args: list[str], run: Path, kill_after: float | None = None) -> tuple[int, float]:
        """(exit code, negative for a signal; seconds since there was a run directory)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([args, str(run), kill_after]) + "\n")
        self._process.stdin.flush()
        code, seconds = json.loads(self._process.stdout.readline())
        return code, seconds

    def close(self) -> None:
        self._process.communicate()
        self._log.close()


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    server = Forks(tmp_path / "forks.log")
    yield server
    server.close()


def command(tmp_path: Path, name: str) -> list[str]:
    flags = RUN | SETTINGS | {"run.checkpoint_every": "1", "out": str(tmp_path), "name": name}
    return [part for key, value in flags.items() for part in (f"--{key}", value)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_ten_random_moments_it_ends_as_if_nothing_had_happened(tmp_path: Path, forks: Forks) -> None:
    whole = tmp_path / "whole"
    code, seconds = forks.run(command(tmp_path, "whole"), whole)
    assert code == 0, (tmp_path / "forks.log").read_text()
    rng = random.Random(0)
    killed = 0
    for number in range(5):  # twice each: a resumed run is killed as well
        run = tmp_path / f"killed-{number}"
        for args in (command(tmp_path, run.name), ["resume", str(run)]):
            code, _ = forks.run(args, run, kill_after=rng.uniform(0, seconds))
            killed += code == -9
            assert code in (0, -9), (tmp_path / "forks.log").read_text()
        code, _ = forks.run(["resume", str(run)], run)
        assert code == 0, (tmp_path / "forks.log").read_text()
        assert lines(run) == lines(whole), run.name
        assert lines(run, "evals.jsonl") == lines(whole, "evals.jsonl"), run.name
        assert all(not damage(path) for path in RunDir(run).checkpoints().values())
    assert killed >= 8


@pytest.mark.slow
def test_a_process_of_its_own_can_be_killed_and_resumed(tmp_path: Path) -> None:
    started = [sys.executable, "-m", "plugym_runners", *command(tmp_path, "cut")]
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (tmp_path / "cut" / "checkpoints" / "step-000002").exists():
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -9
    done = subprocess.run(
        [sys.executable, "-m", "plugym_runners", "resume", str(tmp_path / "cut"), "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["steps"] == 5
    assert [row["step"] for row in lines(tmp_path / "cut")] == [1, 2, 3, 4, 5]


def test_a_run_that_is_still_going_on_is_not_resumed(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "busy"
    subprocess.run(["cp", "-r", str(whole), str(run)], check=True)
    code = "import sys, pathlib, plugym.store as s; s.RunDir(pathlib.Path(sys.argv[1])).logging().__enter__()"
    with RunDir(run).logging():
        other = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
    assert "is being written by another process: wait for it or stop it" in other.stderr
