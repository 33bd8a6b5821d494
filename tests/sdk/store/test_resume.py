"""Where a run goes on: the newest checkpoint that is whole and has its lines; beyond it nothing is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.errors import BadInput
from plugym.reward import Score
from plugym.store import GroupLog, ResumePoint, RunDir, find_resume_point, read_groups, rewind
from plugym.store.sealed import LIST, damage
from plugym.trajectory import Group, ScoredGroup, Trajectory


def make(tmp_path: Path, steps: int, every: int = 2) -> RunDir:
    """A run of `steps` steps with a checkpoint each `every` and an evaluation before each of them."""
    run = RunDir.create(tmp_path, "run")
    run.append_eval(0, {"eval/avg@k": 0.5})
    for step in range(1, steps + 1):
        writer = run.write_groups(step)
        writer.commit()
        run.append_metrics(step, {"reward/mean": step / 10})
        if step % every == 0:
            run.append_eval(step, {"eval/avg@k": 0.5})
            run.write_checkpoint(step, lambda folder, step=step: fill(folder, step), keep=9)
    return run


def fill(folder: Path, step: int) -> dict[str, int]:
    (folder / "reward").mkdir()
    (folder / "reward" / "weights").write_text(f"weights {step}")
    return {"step": step, "version": step - 1}


def kept(run: RunDir) -> tuple[list[float], list[float], list[str], list[int]]:
    metrics, evals = run.read_metrics(), run.read_evals()
    assert not metrics.warning
    assert not evals.warning
    return (
        [row["step"] for row in metrics.rows],
        [row["step"] for row in evals.rows],
        [path.name for path in run.group_files()],
        list(run.checkpoints()),
    )


def test_what_lies_beyond_the_checkpoint_is_removed(tmp_path: Path) -> None:
    run = make(tmp_path, 5)
    point = find_resume_point(run)
    assert (point.step, point.state) == (4, {"step": 4, "version": 3})
    for _ in range(2):  # a rewind that was interrupted is repeated
        rewind(run, point)
        files = [f"step-00000{step}.jsonl.gz" for step in range(1, 5)]
        assert kept(run) == ([1, 2, 3, 4], [0, 2, 4], files, [2, 4])


def test_without_a_checkpoint_only_the_evaluation_before_stays(tmp_path: Path) -> None:
    run = make(tmp_path, 3, every=9)
    assert find_resume_point(run) == ResumePoint()
    rewind(run, ResumePoint())
    assert kept(run) == ([], [0], [], [])


def test_a_new_run_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    rewind(run, find_resume_point(run))
    assert list(run.path.iterdir()) == []


@pytest.mark.parametrize("harm", ["cut", "gone", "flipped", "list gone", "list broken", "list odd"])
def test_damage_is_found_and_the_checkpoint_before_is_taken(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(tmp_path, 4)
    newest = run.checkpoints()[4]
    weights = newest / "reward" / "weights"
    if harm == "cut":
        weights.write_text("weights")
    elif harm == "gone":
        weights.unlink()
    elif harm == "flipped":
        weights.write_text("weights 5")
    elif harm == "list gone":
        (newest / LIST).unlink()
    else:
        (newest / LIST).write_text("{" if harm == "list broken" else "[1]")
    point = find_resume_point(run)
    assert point.step == 2
    assert f"{newest} is damaged and passed over: " in caplog.text
    rewind(run, point)
    assert list(run.checkpoints()) == [2]


def test_a_file_that_came_later_is_no_damage(tmp_path: Path) -> None:
    path = make(tmp_path, 2).checkpoints()[2]
    (path / "README.md").write_text("mine")
    assert damage(path) == ""


def test_missing_lines_are_made_again_where_a_checkpoint_allows_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(tmp_path, 6)
    whole = run.metrics_path.read_bytes()
    run.metrics_path.write_bytes(b"".join(whole.splitlines(keepends=True)[:3]) + b'{"step": 4, "rew')
    point = find_resume_point(run)
    assert point.step == 2
    assert "lacks lines after step 3: going back to" in caplog.text
    rewind(run, point)
    assert [row["step"] for row in run.read_metrics().rows] == [1, 2]


def test_lines_that_no_checkpoint_can_bring_back_are_said_to_be_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = make(tmp_path, 6, every=3)
    run.metrics_path.write_bytes(run.metrics_path.read_bytes().split(b"\n")[0] + b"\n")
    assert find_resume_point(run).step == 6
    assert "lacks lines between steps 1 and 6: they are lost" in caplog.text


def test_a_run_that_writes_no_metrics_misses_none(tmp_path: Path) -> None:
    run = make(tmp_path, 4)
    run.metrics_path.unlink()
    assert find_resume_point(run).step == 4


def test_a_line_broken_in_the_middle_is_bad_input(tmp_path: Path) -> None:
    run = make(tmp_path, 4)
    run.metrics_path.write_text(run.metrics_path.read_text().replace('"step": 2', '"step" 2'))
    with pytest.raises(BadInput, match=r"metrics\.jsonl:2: not a row of metrics"):
        find_resume_point(run)


def test_an_outcome_marks_the_end(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    assert run.read_outcome() is None
    run.write_outcome({"steps": 3})
    assert run.read_outcome() == {"steps": 3}
    (run.path / "outcome.json").write_text("{")
    with pytest.raises(BadInput, match=r"outcome\.json: .*; remove it"):
        run.read_outcome()


def scored(name: str) -> ScoredGroup:
    return ScoredGroup(Group(name, None, (Trajectory(f"{name}/0", None, name),)), (Score(1.0, answer="7"),))


GROUPS = [scored(name) for name in "abc"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_log_cut_anywhere_gives_back_what_was_complete(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    log = GroupLog(tmp_path_factory.mktemp("log") / "eval.jsonl.gz")
    ends = [0]
    for group in GROUPS:
        log.append(group)
        ends.append(log.path.stat().st_size)
    assert log.read() == (GROUPS, False)
    whole = log.path.read_bytes()
    size = data.draw(st.integers(0, len(whole)))
    log.path.write_bytes(whole[:size])
    groups, cut = log.read()
    complete = sum(end <= size for end in ends[1:])
    assert groups == GROUPS[:complete]
    assert cut == (size not in ends)
    log.replace(groups)
    assert log.read() == (groups, False)
    assert [group.scores[0].answer for group in read_groups(log.path)] == ["7"] * len(groups)


def test_a_log_with_other_damage_is_bad_input(tmp_path: Path) -> None:
    log = GroupLog(tmp_path / "eval.jsonl.gz")
    assert log.read() == ([], False)
    for group in GROUPS:
        log.append(group)
    data = bytearray(log.path.read_bytes())
    data[20] ^= 0xFF
    log.path.write_bytes(bytes(data))
    with pytest.raises(BadInput, match="cannot read"):
        log.read()


def test_files_written_before_answers_were_kept_can_be_read(tmp_path: Path) -> None:
    import gzip

    log = GroupLog(tmp_path / "eval.jsonl.gz")
    log.append(GROUPS[0])
    row = json.loads(gzip.decompress(log.path.read_bytes()))
    del row["scores"][0]["answer"]
    log.path.write_bytes(gzip.compress(json.dumps(row).encode() + b"\n"))
    assert log.read()[0][0].scores[0].answer is None
