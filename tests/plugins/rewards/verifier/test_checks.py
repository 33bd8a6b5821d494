"""The verifier and its checks as a run uses them: one score per trajectory, never an exception for an answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym.errors import BadInput, Failure, InfraKind
from plugym.message import Action
from plugym.reward import Score
from plugym.task import Check, Task
from plugym.trajectory import Group, StopReason, Trajectory, Turn
from plugym_rewards.verifier import Verifier, VerifierConfig
from plugym_rewards.verifier.checks import MathCheck, MathConfig, find_choice


def trajectory(text: str | None, answer: str | None, check: Check | None, **changes: Any) -> Trajectory:
    task = Task("t", answer=answer, check=check)
    turns = () if text is None else (Turn((), Action.of(text)),)
    return Trajectory("t/0", task, "t", turns, **changes)


def verify(*trajectories: Trajectory, config: VerifierConfig | None = None) -> list[Score]:
    async def run() -> list[Score]:
        verifier = Verifier(config)
        try:
            return await verifier.score(Group("t", trajectories[0].task, trajectories))
        finally:
            await verifier.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "answer", "check", "correct"),
    [
        ("3 + 4 = 7.", "7", Check("math", {"extract": "last_number"}), True),
        ("3 + 4 = 7 or 8", "7", Check("math", {"extract": "last_number"}), False),
        (r"so \boxed{\frac{1}{2}}", "0.5", Check("math"), True),
        ("#### 1,234", "1234", Check("math", {"extract": "hash"}), True),
        ("<answer>50%</answer>", "1/2", Check("math", {"extract": "answer_tag"}), True),
        (r"\boxed{\sqrt{8}}", r"2\sqrt{2}", Check("math"), True),
        ("The answer is (B).", "B", Check("choice"), True),
        ("A or B", "B", Check("choice"), False),
        (" Paris \n", "Paris", Check("exact"), True),
        ("paris", "Paris", Check("exact"), False),
        ("paris", "Paris", Check("exact", {"case_sensitive": False}), True),
        ("", "7", Check("math"), False),
    ],
)
def test_one_verdict_per_answer(text: str, answer: str, check: Check, correct: bool) -> None:
    (score,) = verify(trajectory(text, answer, check))
    assert (score.correct, score.value) == (correct, float(correct))
    assert score.why


def test_outcome_is_what_the_environment_recorded() -> None:
    check = Check("outcome")
    won, half, cut = (trajectory("", None, check, outcome=value) for value in (1.0, 0.5, None))
    assert [(s.value, s.correct) for s in verify(won, half, cut)] == [(1.0, True), (0.5, False), (0.0, False)]


def test_what_nobody_answered_is_unscored() -> None:
    failed = trajectory("7", "7", Check("math"), stop_reason=StopReason.INFRA, failure=Failure(InfraKind.ENV, "x"))
    overflow = trajectory(None, "7", Check("math"), stop_reason=StopReason.CONTEXT_OVERFLOW)
    right = trajectory("7", "7", Check("math"))
    assert [score.value for score in verify(failed, overflow, right)] == [None, None, 1.0]


def test_the_setting_overrides_the_task() -> None:
    config = VerifierConfig(check="exact", check_settings={"case_sensitive": False})
    assert verify(trajectory("SEVEN", "seven", Check("math")), config=config)[0].correct is True


def test_bad_set_up_is_one_clear_line() -> None:
    with pytest.raises(BadInput, match="names no check"):
        verify(trajectory("7", "7", None))
    with pytest.raises(BadInput, match="no answer to check against"):
        verify(trajectory("7", None, Check("math")))
    with pytest.raises(BadInput, match="unknown checker 'mth'"):
        verify(trajectory("7", "7", Check("mth")))
    with pytest.raises(BadInput, match="extract"):
        verify(trajectory("7", "7", Check("math", {"extract": "nowhere"})))


def test_missing_math_verify_is_named_only_when_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    MathCheck()
    with pytest.raises(BadInput, match=r"plugym\[math\]"):
        MathCheck(MathConfig(algebra=True))


@given(st.text(max_size=200))
def test_choice_never_raises_and_gives_one_letter(text: str) -> None:
    assert find_choice(text) in {None, *"ABCDEFGHIJ"}


@given(st.sampled_from("ABCDE"), st.sampled_from("ABCDE"))
def test_two_letters_are_no_choice(a: str, b: str) -> None:
    if a != b:
        assert find_choice(rf"\boxed{{{a}, {b}}}") is None


@pytest.mark.parametrize(
    ("text", "check", "answer"),
    [
        (r"\boxed{\frac12}", Check("math"), r"\frac{1}{2}"),
        (r"\boxed{$ 0.5 $}", Check("math"), "0.5"),
        ("nothing to see", Check("math"), None),
        (rf"\boxed{{{'9' * 3000}}}", Check("math"), None),  # beyond the guard's length
        ("The answer is (b).", Check("choice"), None),
        ("The answer is (B).", Check("choice"), "B"),
        (" Paris \n  Texas", Check("exact"), "Paris Texas"),
        ("x", Check("exact", {"extract": "boxed"}), None),
    ],
)
def test_a_check_says_which_answer_it_found(text: str, check: Check, answer: str | None) -> None:
    assert verify(trajectory(text, "7", check))[0].answer == answer


def test_stateless_checks_can_score_a_stored_episode_again() -> None:
    verifier = Verifier()
    assert verifier.can_rescore(trajectory("7", "7", Check("exact")))
    checker = verifier._checker(Task("t", check=Check("exact")))
    type(checker).stateless = False
    try:
        assert not verifier.can_rescore(trajectory("7", "7", Check("exact")))
    finally:
        del type(checker).stateless
