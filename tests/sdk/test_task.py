"""Task sets: stable ids, shuffling, windows that wrap, and streams without an end."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.errors import BadInput
from plugym.task import Task, Taskset


def ids(tasks: object) -> list[str]:
    return [task.id for task in tasks]  # type: ignore[attr-defined]


def numbered(n: int) -> Taskset:
    return Taskset(Task(str(i)) for i in range(n))


@given(st.integers(1, 30), st.integers(0, 2**63 - 1))
def test_a_shuffle_is_a_permutation_that_its_seed_decides(n: int, seed: int) -> None:
    shuffled = ids(numbered(n).shuffle(seed))
    assert sorted(shuffled) == sorted(ids(numbered(n)))
    assert shuffled == ids(numbered(n).shuffle(seed))
    if n > 10:
        assert shuffled != ids(numbered(n).shuffle(seed ^ 1))


@given(st.integers(1, 7), st.integers(0, 50), st.integers(0, 20))
def test_windows_are_consecutive_and_wrap(n: int, start: int, size: int) -> None:
    assert ids(numbered(n).window(start, size)) == [str((start + i) % n) for i in range(size)]


def test_a_window_can_be_reached_again_after_a_resume() -> None:
    tasks = numbered(5)
    assert ids(tasks.window(0, 12)) == ids([*tasks.window(0, 7), *tasks.window(7, 5)])


def test_an_endless_stream() -> None:
    stream = Taskset.stream(lambda i: Task(f"n{i}"))
    assert not stream.finite
    assert ids(stream.take(3)) == ids(islice(stream, 3)) == ids(stream.window(0, 3)) == ["n0", "n1", "n2"]
    assert stream.take(3).finite
    assert stream.shuffle(1) is stream
    assert stream[7].id == "n7"
    with pytest.raises(TypeError, match="use take"):
        len(stream)


def test_take_gives_at_most_what_there_is() -> None:
    assert ids(numbered(2).take(5)) == ["0", "1"]


def test_an_empty_set_and_a_doubled_id_are_bad_input() -> None:
    with pytest.raises(BadInput, match="the task set is empty: check the split name and the data file"):
        Taskset([])
    with pytest.raises(BadInput, match="two tasks share the id 'a'"):
        Taskset([Task("a"), Task("b"), Task("a")])


def test_fingerprints_tell_sets_apart() -> None:
    prints = {
        Taskset(tasks).fingerprint()
        for tasks in ([Task("a"), Task("b")], [Task("b"), Task("a")], [Task("ab")], [Task("a", revision=1), Task("b")])
    }
    assert len(prints) == 4
    assert numbered(3).fingerprint() == numbered(3).fingerprint()
