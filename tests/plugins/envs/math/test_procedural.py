"""The built-in problems: right answers, and splits that share no operand pair in either order."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.task import Task
from plugym_envs.math.procedural import LEVELS, held_out_pairs, problems


def operands(task: Task) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", task.id.split("/")[2]))


def pairs(tasks: Iterable[Task]) -> set[tuple[int, int]]:
    """The operand pair of each task, smaller operand first: commuted pairs are the same pair."""
    return {(min(task[:2]), max(task[:2])) for task in map(operands, tasks)}


@pytest.mark.parametrize(("level", "seed"), [(0, 0), (0, 7), (1, 0), (2, 0), (3, 0), (3, 7)])
def test_splits_share_no_pair_in_either_order(level: int, seed: int) -> None:
    tasks = list(problems(level, held_out=40, seed=seed))
    held_out = [task for task in tasks if task.split == "eval"]
    trained = [task for task in tasks if task.split == "train"]
    assert len(held_out) == 40 * 5
    assert len(held_out) + len(trained) == len(LEVELS[level].operands) ** 2 * 5
    assert not pairs(held_out) & pairs(trained)
    assert all(task.data["operands"] == list(operands(task)[:2]) for task in tasks)


def test_level_0_is_what_the_demo_counts_on() -> None:
    tasks = list(problems(0, held_out=40, seed=0))
    assert {task.instruction for task in tasks if operands(task) == (3, 4)} == {
        "What is 3+4?",
        "What is 3 + 4?",
        "Compute 3+4.",
        "3 + 4 = ?",
        "Add 3 and 4.",
    }
    assert [task.id for task in tasks if operands(task) == (3, 4)] == [f"math/sum/3+4/p{p}" for p in range(5)]
    assert sum(task.split == "train" for task in tasks) == 60 * 5
    assert {operands(task) for task in tasks} == {(a, b) for a in range(10) for b in range(10)}


def test_the_split_is_pinned() -> None:
    """Results are compared across versions, so a change of the held-out pairs must be seen."""
    assert sorted(held_out_pairs(range(10), 6, seed=0)) == [(0, 8), (2, 3), (3, 2), (3, 7), (7, 3), (8, 0)]


@pytest.mark.parametrize("level", range(3))
def test_answers_of_sums_and_products(level: int) -> None:
    for task in problems(level, held_out=40, seed=0):
        a, b = operands(task)
        assert task.answer == str(a * b if LEVELS[level].sign == "*" else a + b)
        assert [int(number) for number in re.findall(r"\d+", task.instruction)] == [a, b]


def test_answers_of_word_problems() -> None:
    """Each story's question is worked out again here, from the numbers as they stand in its text."""
    solve: dict[str, Callable[[int, int, int], int]] = {
        "p0": lambda a, b, c: a + b - c,
        "p1": lambda a, b, c: a * b - c,
        "p2": lambda a, b, c: a * b + c,
        "p3": lambda total, a, b: total - a - b,
        "p4": lambda a, b, price: (a + b) * price,
    }
    for task in problems(3, held_out=40, seed=3):
        first, second, third = (int(number) for number in re.findall(r"\d+", task.instruction))
        assert sorted((first, second, third)) == sorted(operands(task))
        assert task.answer == str(solve[task.id.rsplit("/", 1)[1]](first, second, third))
        assert int(task.answer) > 0


@pytest.mark.parametrize("level", range(4))
def test_ids_are_unique_and_difficulty_rises(level: int) -> None:
    tasks = list(problems(level, held_out=40, seed=0))
    assert len({task.id for task in tasks}) == len(tasks)
    assert {task.difficulty for task in tasks} == {level / 4}


def test_seed_changes_which_pairs_are_held_out() -> None:
    assert held_out_pairs(range(10), 40, seed=0) != held_out_pairs(range(10), 40, seed=1)
    assert held_out_pairs(range(10), 40, seed=1) == held_out_pairs(range(10), 40, seed=1)


@given(size=st.integers(2, 12), data=st.data())
@settings(max_examples=60)
def test_any_number_of_pairs_can_be_held_out(size: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(1, size**2 - 1))
    chosen = held_out_pairs(range(size), count, seed=data.draw(st.integers(0, 5)))
    assert len(chosen) == count
    assert all((b, a) in chosen for a, b in chosen)
    assert all(a in range(size) and b in range(size) for a, b in chosen)


@pytest.mark.parametrize("count", [0, 100])
def test_both_splits_need_pairs(count: int) -> None:
    with pytest.raises(ValueError, match="held out of 100"):
        held_out_pairs(range(10), count, seed=0)
