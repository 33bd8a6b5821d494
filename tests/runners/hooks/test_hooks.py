"""The shipped hooks write what they promise, stay off stdout, and switch themselves off instead of ending a run."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from plugym.config import Layers, RunSpec
from plugym.hooks import Hooks
from plugym.reward import Score
from plugym.runner import RunInfo
from plugym.store import RunDir, read_groups
from plugym.task import Task
from plugym.trajectory import Group, Purpose, ScoredGroup, Trajectory, stream_of
from plugym_runners.hooks import console
from plugym_runners.hooks.console import ConsoleProgress
from plugym_runners.hooks.store import StoreHook
from plugym_runners.hooks.tensorboard import TensorBoardHook

METRICS = {"reward/mean": 0.625, "groups/kept": 1.0, "actor/loss": float("nan")}


def spec() -> RunSpec:
    layers = Layers()
    layers.add({"env": "math", "reward": ["verifier", "brief"], "algo": "grpo", "run": {"steps": 2}}, "test")
    return layers.spec()


def scored(name: str, purpose: Purpose = Purpose.TRAIN, task: Task | None = None) -> ScoredGroup:
    trajectory = Trajectory(f"{name}/0", task, name, streams=(stream_of([([1, 2], [3, 4, 5], [-0.1] * 3)]),))
    return ScoredGroup(Group(name, task, (trajectory,), purpose=purpose), (Score(1.0),))


@pytest.fixture
def info(tmp_path: Path) -> RunInfo:
    return RunInfo(RunDir.create(tmp_path, "demo").path, spec())


def play(hooks: Hooks, info: RunInfo) -> None:
    """A run of two steps with an evaluation before, one within step 2 and one after."""
    hooks.call("plugym_run_start", run=info)
    hooks.call("plugym_group_scored", group=scored("before", Purpose.EVAL))
    for step in (1, 2):
        hooks.call("plugym_group_scored", group=scored(f"g{step}"))
        hooks.call("plugym_group_scored", group=scored(f"candidate{step}", Purpose.CANDIDATE))
        if step == 2:
            hooks.call("plugym_group_scored", group=scored("within", Purpose.EVAL))
        hooks.call("plugym_step_end", step=step, metrics=METRICS)
    hooks.call("plugym_run_end", run=info, outcome={"status": "done", "eval_before": None, "eval_after": 0.5})


def ids(path: Path) -> list[str]:
    return [group.group.id for group in read_groups(path)]


def test_store_writes_a_line_and_a_file_a_step_and_evaluations_apart(info: RunInfo) -> None:
    hooks = Hooks({"store": StoreHook()})
    play(hooks, info)
    assert hooks.switched_off == {}
    run = RunDir(info.dir)
    assert [row["step"] for row in run.read_metrics().rows] == [1, 2]
    assert run.read_metrics().rows[0]["reward/mean"] == 0.625
    assert {path.name: ids(path) for path in run.group_files()} == {
        "eval-000000.jsonl.gz": ["before"],
        "eval-000002.jsonl.gz": ["within"],
        "step-000001.jsonl.gz": ["g1", "candidate1"],
        "step-000002.jsonl.gz": ["g2", "candidate2"],
    }


def test_store_keeps_the_groups_of_a_step_that_was_not_finished(info: RunInfo) -> None:
    hooks = Hooks({"store": StoreHook()})
    hooks.call("plugym_run_start", run=info)
    hooks.call("plugym_step_end", step=1, metrics={})
    hooks.call("plugym_group_scored", group=scored("last words"))
    hooks.call("plugym_run_end", run=info, outcome={"status": "failed"})
    assert [ids(path) for path in RunDir(info.dir).group_files()] == [["last words"]]
    assert RunDir(info.dir).group_files()[0].name == "step-000002.jsonl.gz"


def test_store_has_the_episodes_of_an_evaluation_before_its_line_is_written(info: RunInfo) -> None:
    hooks = Hooks({"store": StoreHook()})
    hooks.call("plugym_run_start", run=info)
    hooks.call("plugym_group_scored", group=scored("before", Purpose.EVAL))
    hooks.call("plugym_eval_end", step=0, metrics={})
    assert {path.name: ids(path) for path in RunDir(info.dir).group_files()} == {"eval-000000.jsonl.gz": ["before"]}
    hooks.call("plugym_group_scored", group=scored("g"))
    hooks.call("plugym_group_scored", group=scored("within", Purpose.EVAL))
    hooks.call("plugym_eval_end", step=1, metrics={})
    hooks.call("plugym_step_end", step=1, metrics={})
    names = [path.name for path in RunDir(info.dir).group_files()]
    assert names == ["eval-000000.jsonl.gz", "eval-000001.jsonl.gz", "step-000001.jsonl.gz"]
    assert hooks.switched_off == {}


def test_store_goes_on_from_the_checkpoint_it_resumes(info: RunInfo) -> None:
    RunDir(info.dir).write_checkpoint(50, lambda folder: {}, keep=1)
    hooks = Hooks({"store": StoreHook()})
    hooks.call("plugym_run_start", run=info)
    hooks.call("plugym_group_scored", group=scored("g"))
    hooks.call("plugym_step_end", step=51, metrics={})
    assert [path.name for path in RunDir(info.dir).group_files()] == ["step-000051.jsonl.gz"]


def test_store_leaves_out_what_has_no_json_form_says_so_once_and_counts(
    info: RunInfo, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = Hooks({"store": StoreHook()})
    hooks.call("plugym_run_start", run=info)
    for name in "ab":
        hooks.call("plugym_group_scored", group=scored(name, task=Task(name, data={"blob": object()})))
    hooks.call("plugym_group_scored", group=scored("good"))
    hooks.call("plugym_step_end", step=1, metrics=METRICS)
    hooks.call("plugym_run_end", run=info, outcome={"status": "done"})
    assert hooks.switched_off == {}
    assert ids(info.dir / "trajectories" / "step-000001.jsonl.gz") == ["good"]
    assert caplog.messages == [
        "episodes that cannot be stored are left out: task 'a' cannot be stored: data: "
        "Value error, object has no JSON form",
        "2 groups had no JSON form and are not in trajectories/",
    ]


@pytest.fixture
def loud_again() -> Iterator[None]:
    yield
    console.STDERR.quiet = False


def test_console_prints_one_plain_line_a_step_on_stderr(info: RunInfo, capsys: pytest.CaptureFixture[str]) -> None:
    play(Hooks({"console": ConsoleProgress()}), info)
    out, err = capsys.readouterr()
    head, first, second, end = err.splitlines()
    assert out == ""
    assert head == f"math + verifier+brief + grpo on smollm2, 2 steps, in {info.dir}"
    assert first.startswith("step 1/2  reward 0.625  kept 1/1  3 tokens  ")
    assert first.endswith(" s")
    assert second.startswith("step 2/2  ")
    assert end == "done  eval_after 0.500"


def test_console_shows_a_step_without_any_score(info: RunInfo, capsys: pytest.CaptureFixture[str]) -> None:
    hooks = Hooks({"console": ConsoleProgress()})
    hooks.call("plugym_run_start", run=info)
    hooks.call("plugym_step_end", step=1, metrics={"eval/avg@k": 0.25})
    assert "step 1/2  reward -  kept 0/0  0 tokens" in capsys.readouterr().err
    assert hooks.switched_off == {}


@pytest.mark.usefixtures("loud_again")
def test_console_is_silent_when_a_program_reads_the_output(info: RunInfo, capsys: pytest.CaptureFixture[str]) -> None:
    console.STDERR.quiet = True
    play(Hooks({"console": ConsoleProgress()}), info)
    assert capsys.readouterr() == ("", "")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_console_draws_a_live_bar_on_a_terminal(info: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "160")
    hooks = Hooks({"console": ConsoleProgress()})
    play(hooks, info)
    assert hooks.switched_off == {}
    assert "2/2" in screen.getvalue()
    assert "kept 1/1  3 tokens" in screen.getvalue()
    assert "done  eval_after 0.500" in screen.getvalue()


def test_tensorboard_writes_finite_metrics(info: RunInfo) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    hooks = Hooks({"tensorboard": TensorBoardHook()})
    play(hooks, info)
    assert hooks.switched_off == {}
    events = accumulator.EventAccumulator(str(info.dir / "tb"))
    events.Reload()
    series = [
        (event.step, float(np.asarray(event.tensor_proto.float_val)[0])) for event in events.Tensors("reward/mean")
    ]
    assert series == [(1, 0.625), (2, 0.625)]
    assert events.Tags()["tensors"] == ["reward/mean", "groups/kept"]


def test_tensorboard_without_its_extra_warns_once_and_switches_itself_off(
    info: RunInfo, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with caplog.at_level(logging.WARNING):
        play(Hooks({"tensorboard": TensorBoardHook()}), info)
    assert len(caplog.messages) == 1
    assert "pip install plugym[tensorboard]" in caplog.messages[0]
    assert not (info.dir / "tb").exists()
