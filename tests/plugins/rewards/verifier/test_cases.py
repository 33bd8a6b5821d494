"""Case files: gold, answer, expected verdict. The committed samples, and the full shared files where they are."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from plugym_rewards.verifier import equal
from plugym_rewards.verifier.algebra import AlgebraPool
from plugym_rewards.verifier.equal import grade, grade_response

MIN_PER_CPU_SECOND = 1_000


@pytest.mark.parametrize_cases("answers.jsonl")
def test_sample_of_answers_needs_no_algebra(case: dict[str, Any]) -> None:
    verdict = grade(case["gold"], case["pred"])
    assert verdict.correct is case["expected"], verdict
    assert verdict.path != "none"


@pytest.mark.parametrize_cases("responses.jsonl")
def test_sample_of_responses(case: dict[str, Any]) -> None:
    verdict = grade_response(case["gold"], case["pred"])
    assert verdict.correct is case["expected"], verdict


@pytest.mark.parametrize_cases("grading_cases.jsonl", shared=True)
def test_shared_answers(case: dict[str, Any], algebra: AlgebraPool) -> None:
    verdict = grade(case["gold"], case["pred"], algebra=algebra)
    assert verdict.correct is case["expected"], verdict


@pytest.mark.parametrize_cases("hedge_cases.jsonl", shared=True)
def test_shared_whole_answers(case: dict[str, Any], algebra: AlgebraPool) -> None:
    verdict = grade_response(case["gold"], case["pred"], algebra=algebra)
    assert verdict.correct is case["expected"], verdict


@pytest.mark.parametrize(
    ("gold", "pred", "expected"),
    [
        (r"1+\sqrt{2}", r"\sqrt{3+2\sqrt{2}}", True),
        (r"\frac{\pi}{4}", r"\arctan(1)", True),
        (r"\int_0^1 x\,dx", r"\frac12", True),
        (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k", True),
        (r"\sqrt{x^2}", "x", False),
        (r"(1,\arctan(1))", r"(1,\frac{\pi}{4})", True),
        (r"(1,\arctan(1))", r"(2,\frac{\pi}{4})", False),
    ],
)
def test_what_only_algebra_decides(gold: str, pred: str, expected: bool, algebra: AlgebraPool) -> None:
    assert grade(gold, pred, algebra=algebra).correct is expected
    assert grade(gold, pred).correct is False, "not paid where nothing can confirm it"


def test_speed_on_mixed_answers() -> None:
    """The floor of the design with a wide margin; the measured figure is two to four times the floor."""
    folder = Path(__file__).parents[4] / "tests" / "data" / "verifier"
    cases = [json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    best = 0.0
    for _ in range(5):
        equal._read_gold.cache_clear()
        start = time.process_time()
        for case in cases:
            grade(case["gold"], case["pred"])
        best = max(best, len(cases) / (time.process_time() - start))
    assert best >= MIN_PER_CPU_SECOND
