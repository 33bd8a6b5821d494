"""The run directory keeps what it is given: no run is written over, no half-written file is ever seen as whole."""

import json
import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.config import Layers, RunSpec, to_layer
from plugym.errors import BadInput
from plugym.store import RunDir, atomic
from plugym.tomlfile import dump_toml


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "runs", "demo")


def spec() -> RunSpec:
    layers = Layers()
    layers.add({"env": {"name": "math", "level": 2}, "reward": ["verifier", "short=brief:0.2"], "algo": "grpo"}, "test")
    return layers.spec()


def test_a_taken_name_gets_a_number_and_the_earlier_run_is_untouched(tmp_path: Path, run: RunDir) -> None:
    (run.path / "config.toml").write_text("first")
    names = [RunDir.create(tmp_path / "runs", "demo").path.name for _ in range(2)]
    assert names == ["demo-2", "demo-3"]
    assert (run.path / "config.toml").read_text() == "first"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", ".hidden", "-x", "a\n"])
def test_a_name_that_is_no_folder_name_is_refused_and_nothing_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="not a plain folder name"):
        RunDir.create(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


def test_a_place_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match=r"cannot make a run directory in .*file"):
        RunDir.create(tmp_path / "file", "demo")


def test_open_wants_a_run(tmp_path: Path, run: RunDir) -> None:
    with pytest.raises(BadInput, match=r"is not a run directory: it has no config\.toml"):
        RunDir.open(tmp_path)
    run.write_config(dump_toml(to_layer(spec())))
    assert RunDir.open(run.path) == run


def test_the_spec_comes_back(run: RunDir) -> None:
    run.write_config(dump_toml(to_layer(spec())))
    assert run.read_spec() == spec()


def test_an_attempt_has_its_own_log_and_removes_leftovers(run: RunDir) -> None:
    logger = logging.getLogger("plugym.test")
    with run.logging() as attempt:
        assert attempt == 1
        logger.info("first attempt")
    half = atomic.unfinished(run.path / "checkpoints" / "step-000003")
    half.mkdir(parents=True)
    (half / "model.bin").touch()
    run.write_groups(1)  # never committed
    with run.logging() as attempt:
        assert attempt == 2
        logger.info("second attempt")
        logging.getLogger("somebody.else").info("not ours")
    logger.info("afterwards")
    assert not half.exists()
    assert list((run.path / "trajectories").iterdir()) == []
    first, second = ((run.path / "logs" / f"attempt-{n}.log").read_text() for n in (1, 2))
    assert first.endswith("INFO plugym.test: first attempt\n")
    assert "step-000003.tmp" in second
    assert second.endswith("INFO plugym.test: second attempt\n")


def test_warnings_stay_visible_while_an_attempt_is_logged(run: RunDir) -> None:
    code = (
        f"import logging; from pathlib import Path; from plugym.store import RunDir\n"
        f"with RunDir(Path({str(run.path)!r})).logging():\n"
        f"    logging.getLogger('plugym.test').warning('careful')\n"
        f"    logging.getLogger('plugym.test').info('quiet')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "careful\n"


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8).filter(lambda name: name != "step")
rows = st.lists(st.dictionaries(names, st.floats(), max_size=3), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(rows=rows, cut=st.integers(1, 200))
def test_metrics_come_back_and_a_cut_last_line_is_left_out_and_named(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]], cut: int
) -> None:
    run = RunDir(tmp_path_factory.mktemp("run"))
    for step, row in enumerate(rows, 1):
        run.append_metrics(step, row)
    expected = [
        {"step": step} | {name: value if math.isfinite(value) else None for name, value in row.items()}
        for step, row in enumerate(rows, 1)
    ]

    def stored() -> list[dict[str, float | None]]:
        return [{k: None if math.isnan(v) else v for k, v in row.items()} for row in run.read_metrics().rows]

    assert stored() == expected
    assert run.read_metrics().warning == ""
    whole = run.metrics_path.read_bytes()
    last_line = len(whole.splitlines()[-1]) if b"\n" in whole[:-1] else len(whole) - 1
    run.metrics_path.write_bytes(whole[: -min(cut, last_line)])
    assert stored() == expected[:-1]
    assert "the last line is cut and left out" in run.read_metrics().warning
    run.append_metrics(len(rows), rows[-1])
    assert stored() == expected
    assert run.metrics_path.read_bytes() == whole


def test_metrics_of_a_run_that_has_none_yet(run: RunDir) -> None:
    assert run.read_metrics().rows == ()


@pytest.mark.parametrize("bad", ["{", "[]", "3"])
def test_a_broken_line_in_the_middle_is_bad_input(run: RunDir, bad: str) -> None:
    run.metrics_path.write_text(f'{{"step": 1}}\n{bad}\n{{"step": 3}}\n')
    with pytest.raises(BadInput, match=r"metrics\.jsonl:2: not a row of metrics"):
        run.read_metrics()


def save(run: RunDir, step: int, text: str = "weights", keep: int = 9) -> Path:
    def fill(folder: Path) -> dict[str, int]:
        (folder / "optimizer").mkdir()
        (folder / "optimizer" / "tensors").write_text(text)
        return {"step": step}

    return run.write_checkpoint(step, fill, keep=keep)


def test_latest_checkpoint_is_the_newest_complete_one(run: RunDir) -> None:
    assert run.latest_checkpoint() is None
    for step in (50, 1_000_000, 100):
        save(run, step)

    def fail(folder: Path) -> dict[str, int]:
        (folder / "tensors").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run.write_checkpoint(2_000_000, fail, keep=9)
    assert list(run.checkpoints()) == [50, 100, 1_000_000]
    assert run.latest_checkpoint() == run.path / "checkpoints" / "step-1000000"
    assert not [path for path in (run.path / "checkpoints").iterdir() if path.name.startswith(".")]


def test_a_checkpoint_is_invisible_until_it_is_complete(run: RunDir) -> None:
    seen: list[dict[int, Path]] = []

    def look(folder: Path) -> dict[str, int]:
        seen.append(run.checkpoints())
        return {}

    assert run.write_checkpoint(7, look, keep=1) == run.path / "checkpoints" / "step-000007"
    assert seen == [{}]
    assert list(run.checkpoints()) == [7]


def test_the_state_of_the_run_lies_in_the_checkpoint(run: RunDir) -> None:
    assert json.loads((save(run, 7) / "state.json").read_text()) == {"step": 7}


def test_saving_a_step_again_replaces_it_whole(run: RunDir) -> None:
    (save(run, 7, "old") / "stale").touch()
    path = save(run, 7, "new")
    assert sorted(file.name for file in path.rglob("*") if file.is_file()) == ["files.json", "state.json", "tensors"]
    assert (path / "optimizer" / "tensors").read_text() == "new"
    assert os.listdir(run.path / "checkpoints") == ["step-000007"]


def test_only_the_newest_checkpoints_are_kept(run: RunDir) -> None:
    for step in (1, 2, 3, 4):
        save(run, step, keep=2)
    assert sorted(os.listdir(run.path / "checkpoints")) == ["step-000003", "step-000004"]


def test_a_killed_process_leaves_only_complete_checkpoints(run: RunDir) -> None:
    save(run, 1)
    code = f"""
        import time
        from pathlib import Path
        from plugym.store import RunDir

        def save(folder):
            (folder / "model").write_text("half")
            print("saving", flush=True)
            time.sleep(60)

        RunDir(Path({str(run.path)!r})).write_checkpoint(2, save, keep=1)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"saving\n"
        os.kill(process.pid, signal.SIGKILL)
    assert list(run.checkpoints()) == [1]
    with run.logging():
        assert os.listdir(run.path / "checkpoints") == ["step-000001"]


def test_evaluations_have_a_file_of_their_own(run: RunDir) -> None:
    run.append_eval(0, {"eval/avg@k": 0.25})
    assert run.read_evals().rows == ({"step": 0, "eval/avg@k": 0.25},)
    assert run.read_metrics().rows == ()
