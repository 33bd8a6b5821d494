"""Numbers of an evaluation: unbiased, with honest error bars, and nothing that failed is counted as wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.errors import Failure, InfraKind
from plugym.reward import Score
from plugym.task import Task
from plugym.trajectory import Group, ScoredGroup, StopReason, Trajectory
from plugym_runners.estimates import average, estimate, majority, pass_share, summarise
from plugym_runners.evaluate import eval_metrics


def right(answer: str = "7") -> Score:
    return Score(1.0, correct=True, parts={"path_fast": 1.0}, answer=answer)


def wrong(answer: str | None = "8") -> Score:
    return Score(0.0, correct=False, parts={"path_algebra": 1.0}, answer=answer)


def group(scores: Sequence[Score | None], name: str = "math/sum/1", difficulty: float | None = None) -> ScoredGroup:
    """None stands for an episode that infrastructure ended."""
    task = Task(name, difficulty=difficulty)
    failure = Failure(InfraKind.ENGINE, "down")
    trajectories = tuple(
        Trajectory(f"{name}/{i}", task, name)
        if score is not None
        else Trajectory(f"{name}/{i}", task, name, stop_reason=StopReason.INFRA, failure=failure)
        for i, score in enumerate(scores)
    )
    return ScoredGroup(Group(name, task, trajectories), tuple(score or Score.unscored("down") for score in scores))


def test_the_error_is_that_of_the_mean_over_tasks() -> None:
    found = estimate([1.0, 0.0, 0.0, 0.0])
    assert found is not None
    assert (found.value, found.tasks) == (0.25, 4)
    assert found.se == pytest.approx(math.sqrt(0.25 * 0.75 / 3))
    # Four equal samples of a task say no more than one.
    many = summarise([group([score] * 4) for score in (right(), wrong(), wrong(), wrong())], 4).avg
    assert many == found


def test_one_task_has_no_error_and_none_has_no_estimate() -> None:
    single = estimate([0.5])
    assert single is not None
    assert (str(single), single.to_json()) == ("0.500", {"value": 0.5, "se": None, "tasks": 1})
    assert estimate([]) is None


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_mean_over_all_ways_to_draw_k(verdicts: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(verdicts)))
    draws = [any(draw) for draw in itertools.combinations(verdicts, k)]
    found = pass_share(group([right() if correct else wrong() for correct in verdicts]), k)
    assert found == pytest.approx(sum(draws) / len(draws))


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([right(), wrong(), wrong()], 0.0),
        ([right("1/2"), right("0.5"), wrong("3"), wrong("4")], 1.0),  # right answers are one answer
        ([right(), wrong()], 0.5),
        ([right(), wrong("8"), wrong("9")], 1 / 3),
        ([right(), wrong(None), wrong(None)], 1.0),  # who says nothing does not vote
        ([wrong(None)], 0.0),
        ([None, right()], 1.0),
        ([None, None], None),
        ([Score(0.7, answer="7")], None),
    ],
)
def test_the_majority_decides(scores: list[Score | None], expected: float | None) -> None:
    assert majority(group(scores)) == (None if expected is None else pytest.approx(expected))


def test_what_failed_or_was_not_scored_counts_nowhere_but_is_said() -> None:
    groups = [group([right(), None]), group([None, None]), group([wrong(), Score.unscored("infra/reward: gone")])]
    found = summarise(groups, 2)
    assert (found.tasks, found.episodes, found.unscored, found.infra) == (3, 6, 1, {"engine": 3})
    assert found.avg is not None
    assert (found.avg.value, found.avg.tasks) == (0.5, 2)
    assert 2 not in found.passes
    assert found.passes[1] == found.avg
    assert found.stops == {"env_done": 3}
    assert eval_metrics(groups, 2) == {
        "eval/tasks": 3.0,
        "eval/unscored": 1.0,
        "eval/infra": 3.0,
        "eval/avg@k": 0.5,
        "eval/maj@k": 0.5,
    }


def test_a_score_without_a_verdict_counts_with_its_value_and_has_no_pass() -> None:
    found = summarise([group([Score(0.25), Score(0.75)])], 2)
    assert found.avg is not None
    assert found.avg.value == 0.5
    assert (found.passes, found.maj) == ({}, None)
    assert average(group([Score(0.25), right()])) == 0.625


def test_tables_by_difficulty_and_by_source_and_the_paths_of_the_check() -> None:
    groups = [
        group([right()], "math/gsm8k/1-ab", 0.21),
        group([wrong()], "math/gsm8k/2-cd", 0.19),
        group([wrong()], "math/svamp/1-ef"),
        group([Score(1.0, correct=True, parts={"verifier/path_fast": 1.0, "brief": 0.5})], "odd"),
    ]
    found = summarise(groups, 1)
    assert {name: (row.value, row.tasks) for name, row in found.levels.items()} == {"0.2": (0.5, 2)}
    assert {name: (row.value, row.tasks) for name, row in found.sources.items()} == {
        "math/gsm8k": (0.5, 2),
        "math/svamp": (0.0, 1),
    }
    assert found.paths == {"fast": 2, "algebra": 2}


def test_a_run_reports_pass_at_powers_of_two_up_to_n() -> None:
    metrics = eval_metrics([group([right(), wrong(), wrong(), wrong(), wrong()])], 5)
    assert metrics["eval/pass@2"] == pytest.approx(0.4)
    assert metrics["eval/pass@4"] == pytest.approx(0.8)
    assert metrics["eval/maj@k"] == 0.0
    assert sorted(name for name in metrics if "pass" in name) == ["eval/pass@2", "eval/pass@4"]
