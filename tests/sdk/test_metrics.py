"""Metrics of a step by hand; infra failures are counted and are in no other number."""

from __future__ import annotations

import pytest
from builders import failed, group, trajectory

from plugym.metrics import batch_metrics
from plugym.reward import Score
from plugym.trajectory import ScoredGroup, StopReason


def test_a_step_by_hand() -> None:
    right = trajectory("a", tokens=(2, 1), counts={"tool_calls": 2, "successful_calls": 1, "retries": 1})
    cut = trajectory("b", tokens=(4,), stop_reason=StopReason.TURN_LENGTH, counts={"truncated_turns": 1})
    other = trajectory("c", tokens=(1,))
    groups = [
        ScoredGroup(
            group(right, cut, failed("x"), name="g0"),
            (Score(1.0, True, {"exact": 1.0}), Score(0.0, False), Score(0.9)),
        ),
        ScoredGroup(group(other, name="g1"), (Score.unscored("?"),)),
        ScoredGroup(group(trajectory("d"), trajectory("e"), name="g2"), (Score(1.0, True), Score(1.0, True))),
    ]
    metrics = batch_metrics(groups)
    expected = {
        "episodes": 5,
        "reward/mean": 0.75,
        "reward/std": pytest.approx(0.4330127),
        "reward/unscored": 1,
        "reward/exact": 0.25,
        "groups/total": 3,
        "groups/all_correct": 1,
        "groups/all_wrong": 0,
        "groups/zero_variance": 1,
        "stop/env_done": 0.8,
        "stop/turn_length": 0.2,
        "stop/deadline": 0,
        "infra/env": 1,
        "tools/calls": 0.4,
        "tools/success_rate": 0.5,
        "counts/retries": 1,
        "tokens/prompt_mean": 2,
        "tokens/response_max": 5,
        "tokens/response_mean": (5 + 4 + 1 + 2 + 2) / 5,
        "tokens/per_turn": (3 + 4 + 1 + 2 + 2) / 6,
        "tokens/truncated": 1,
        "turns/mean": 6 / 5,
    }
    assert {name: metrics[name] for name in expected} == expected
    assert sum(value for name, value in metrics.items() if name.startswith("stop/")) == pytest.approx(1)


def test_what_did_not_happen_has_no_number() -> None:
    nobody = batch_metrics([ScoredGroup(group(failed("x")), (Score.unscored("infra"),))])
    assert nobody["episodes"] == 0
    assert "reward/mean" not in nobody
    assert not [name for name in nobody if name.startswith(("tokens/", "stop/"))]
    assert batch_metrics([])["groups/total"] == 0
    assert "tools/success_rate" not in batch_metrics([ScoredGroup(group(trajectory("a")), (Score(1.0),))])
