"""A stored episode is the episode: exact round trips of every kind of trajectory, score and group, through files."""

import dataclasses
import gzip
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from strategies import ends, groups, messages, streams, tasks, turns

from plugym.errors import BadInput
from plugym.message import Action, ImagePart, Message, TextPart
from plugym.reward import Score
from plugym.store import GroupRecord, GroupWriter, TrajectoryRecord, read_groups
from plugym.store.fields import from_runs, to_runs
from plugym.task import Task
from plugym.trajectory import Group, ScoredGroup, TokenStream, Trajectory, Turn


def same(a: Any, b: Any) -> bool:
    """Equality that goes into arrays, takes NaN as equal to NaN, and insists on types."""
    if isinstance(a, np.ndarray):
        nan = np.isnan(a)  # the bits inside a NaN carry nothing
        return a.dtype == b.dtype and np.array_equal(nan, np.isnan(b)) and a[~nan].tobytes() == b[~nan].tobytes()
    if dataclasses.is_dataclass(a):
        return type(a) is type(b) and all(
            same(getattr(a, field.name), getattr(b, field.name)) for field in dataclasses.fields(a)
        )
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


def restored(trajectory: Trajectory) -> Trajectory:
    data = json.dumps(TrajectoryRecord.from_trajectory(trajectory).model_dump(by_alias=True))
    return TrajectoryRecord.model_validate(json.loads(data)).to_trajectory()


# Each part of a trajectory on its own, so that a failure shrinks to something a person can read.
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param(st.builds(dict, task=tasks), id="task"),
        pytest.param(st.builds(dict, closing=messages), id="messages"),
        pytest.param(st.builds(dict, turns=st.lists(turns, max_size=1).map(tuple)), id="turns"),
        pytest.param(st.builds(dict, streams=st.lists(streams(), max_size=2).map(tuple)), id="streams"),
        pytest.param(ends, id="end"),
    ],
)
def test_trajectory_round_trip(parts: st.SearchStrategy[dict[str, Any]]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(parts)
    def check(parts: dict[str, Any]) -> None:
        trajectory = Trajectory(**{"id": "t", "task": None, "group_id": "g"} | parts)
        assert same(restored(trajectory), trajectory)

    check()


# Whole groups are too large to shrink within a test's time.
@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(st.lists(groups(), min_size=1, max_size=2))
def test_groups_come_back_from_a_file(tmp_path_factory: pytest.TempPathFactory, written: list[ScoredGroup]) -> None:
    path = tmp_path_factory.mktemp("groups") / "step-000001.jsonl.gz"
    writer = GroupWriter(path)
    for group in written:
        writer.write(group)
    assert not path.exists()
    writer.commit()
    assert same(list(read_groups(path)), written)


@given(st.lists(st.integers(-3, 3)))
def test_runs_are_shortest_and_exact(values: list[int]) -> None:
    runs = to_runs(np.array(values, dtype=np.int64))
    assert from_runs(runs, len(values)).tolist() == values
    with pytest.raises(ValueError, match=r"runs of \d+ tokens in a stream of"):
        from_runs([*runs, (0, 10**18)], len(values))
    assert all(a[0] != b[0] for a, b in itertools.pairwise(runs))


def one_group(task: Task | None = None, **kwargs: Any) -> ScoredGroup:
    trajectory = Trajectory("t", task, "g", **kwargs)
    return ScoredGroup(Group("g", task, (trajectory,)), (Score(1.0, correct=True),))


def write(path: Path, *written: ScoredGroup) -> bytes:
    writer = GroupWriter(path)
    for group in written:
        writer.write(group)
    writer.commit()
    return path.read_bytes()


def test_equal_groups_make_equal_files(tmp_path: Path) -> None:
    assert write(tmp_path / "a.gz", one_group()) == write(tmp_path / "b.gz", one_group())


def test_a_line_is_readable_json_and_names_its_schema(tmp_path: Path) -> None:
    write(tmp_path / "a.gz", one_group(Task("math/é", answer="7")))
    line = gzip.decompress((tmp_path / "a.gz").read_bytes()).decode()
    assert "math/é" in line
    assert json.loads(line)["schema"] == 1
    assert json.loads(line)["trajectories"][0]["schema"] == 1


def test_an_image_in_many_streams_is_stored_once() -> None:
    image = ImagePart(b"\x89PNG" + b"x" * 100)
    empty = np.zeros(0, dtype=np.int64)
    stream = TokenStream(empty, empty.astype(bool), empty.astype(np.float32), empty, empty, media=(image, image))
    turn = Turn((Message("user", (TextPart("look"), image)),), Action.of("ok"))
    trajectory = Trajectory("t", None, "g", turns=(turn,), streams=(stream, stream))
    record = TrajectoryRecord.from_trajectory(trajectory)
    assert len(record.images) == 1
    assert same(record.to_trajectory(), trajectory)


def test_numpy_numbers_and_tuples_in_a_task_become_json() -> None:
    task = Task("t", data={"size": np.int64(3), "share": np.float32(0.5), "pair": (1, 2)})
    restored = TrajectoryRecord.from_trajectory(Trajectory("t", task, "g")).to_trajectory().task
    assert restored == Task("t", data={"size": 3, "share": 0.5, "pair": [1, 2]})


@pytest.mark.parametrize(
    ("data", "message"),
    [({"blob": b"x"}, "bytes has no JSON form"), ({"deep": [{1: "a"}]}, "expected text, got int")],
)
def test_a_task_without_a_json_form_is_refused_by_name(tmp_path: Path, data: dict[str, Any], message: str) -> None:
    writer = GroupWriter(tmp_path / "a.gz")
    with pytest.raises(TypeError, match=rf"task 'bad' cannot be stored: data: .*{message}"):
        writer.write(one_group(Task("bad", data=data)))
    writer.write(one_group())
    writer.commit()
    assert len(list(read_groups(tmp_path / "a.gz"))) == 1


def valid_line() -> dict[str, Any]:
    data: dict[str, Any] = GroupRecord.from_group(one_group()).model_dump(mode="json", by_alias=True)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2, this version of plugym reads 1"),
        ({"scores": []}, "0 scores for 1 trajectories"),
        ({"id": 3}, "id: .*expected text, got int"),
        ({"surprise": 1}, "surprise: Extra inputs"),
    ],
)
def test_a_bad_line_is_named_by_number(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "a.jsonl.gz"
    lines = [json.dumps(valid_line()), json.dumps(valid_line() | change)]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    with pytest.raises(BadInput, match=rf"a\.jsonl\.gz:2: .*{message}"):
        list(read_groups(path))


def test_a_missing_image_is_a_bad_line(tmp_path: Path) -> None:
    line = valid_line()
    line["trajectories"][0]["closing"] = [
        {"role": "user", "content": [{"image": "0"}], "reasoning": "", "tool_calls": [], "tool_call_id": None}
    ]
    (tmp_path / "a.gz").write_bytes(gzip.compress(json.dumps(line).encode()))
    with pytest.raises(BadInput, match="KeyError: '0'"):
        list(read_groups(tmp_path / "a.gz"))


def test_a_cut_file_and_a_file_that_is_no_gzip_are_bad_input(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gz", one_group())
    (tmp_path / "cut.gz").write_bytes(whole[:-12])
    (tmp_path / "plain.gz").write_text("{}")
    for name in ("cut.gz", "plain.gz"):
        with pytest.raises(BadInput, match=f"cannot read .*{name}"):
            list(read_groups(tmp_path / name))
