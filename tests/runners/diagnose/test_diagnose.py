"""Each simulated pathology raises its own finding, a healthy run raises none; and the traps of real logs are not found.

The simulation writes rows as a run does, under the fixed names; a pathology is one change to the healthy curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from plugym.reward import Schedule
from plugym_runners.diagnose import CHECKS, Diagnosis, diagnose
from plugym_runners.diagnose.diagnosis import Status

STEPS = 200
WEIGHTS = {"verifier": 1.0, "brief": 0.2}
Curves = dict[str, np.ndarray]
Pathology = Callable[[Curves, np.ndarray, np.random.Generator], None]


def healthy(rng: np.random.Generator) -> tuple[Curves, np.ndarray]:
    """Curves of a run that learns, and its progress from 0 to 1."""
    t = np.linspace(0, 1, STEPS)

    def noise(size: float) -> np.ndarray:
        return rng.normal(0, size, STEPS)

    verifier = np.clip(0.25 + 0.5 * t + noise(0.05), 0, 1)
    brief = np.clip(0.5 + noise(0.05), 0, 1)
    curves = {
        "reward/mean": verifier + 0.2 * brief,
        "reward/verifier": verifier,
        "reward/brief": brief,
        "groups/total": np.full(STEPS, 16.0),
        "groups/all_correct": rng.binomial(16, 0.02 + 0.15 * t).astype(float),
        "groups/all_wrong": rng.binomial(16, 0.12 * (1 - t)).astype(float),
        "stop/turn_length": np.clip(0.01 + noise(0.005), 0, 1),
        "stop/max_turns": np.clip(0.01 + noise(0.005), 0, 1),
        "tokens/response_mean": 200 + 40 * t + noise(8),
        "actor/entropy": 1.2 - 0.4 * t + noise(0.03),
        "actor/clip_low": np.clip(0.02 + noise(0.004), 0, 1),
        "actor/clip_high": np.clip(0.025 + noise(0.004), 0, 1),
        "actor/kl": 0.001 + 0.08 * t + np.abs(noise(0.005)),
        "actor/grad_norm": rng.lognormal(-1, 0.25, STEPS),
        "actor/updates": np.ones(STEPS),
        "eval/avg@k": np.clip(0.24 + 0.4 * t + noise(0.02), 0, 1),
    }
    curves["groups/zero_variance"] = curves["groups/all_correct"] + curves["groups/all_wrong"]
    return curves, t


def findings_of(curves: Curves) -> dict[str, Diagnosis]:
    names = [name for name in curves if name != "eval/avg@k"]
    rows = [{"step": float(i + 1), **{name: float(curves[name][i]) for name in names}} for i in range(STEPS)]
    evals = [{"step": float(i + 1), "eval/avg@k": float(curves["eval/avg@k"][i])} for i in range(0, STEPS, 20)]
    return {finding.name: finding for finding in diagnose(rows, evals, WEIGHTS)}


def _all_correct(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["groups/all_correct"] = rng.binomial(16, 0.2 + 0.65 * t).astype(float)
    curves["groups/all_wrong"][:] = 0
    curves["groups/zero_variance"] = curves["groups/all_correct"]


def _all_wrong(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["groups/all_wrong"] = rng.binomial(16, 0.9, STEPS).astype(float)
    curves["groups/all_correct"][:] = 0
    curves["groups/zero_variance"] = curves["groups/all_wrong"]


def _tied(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["groups/zero_variance"] = rng.binomial(16, 0.7, STEPS).astype(float)


def _truncation(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["stop/turn_length"] += 0.3 * t


def _length(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["tokens/response_mean"] *= 1 + 1.5 * t
    curves["reward/mean"] = 0.4 + rng.normal(0, 0.03, STEPS)
    curves["eval/avg@k"] = 0.3 + rng.normal(0, 0.005, STEPS)


def _reward_follows_length(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["tokens/response_mean"] *= 1 + 1.5 * t
    curves["eval/avg@k"] = 0.3 - 0.05 * t


def _entropy(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/entropy"] = 1.2 * np.exp(-4 * t) + np.abs(rng.normal(0, 0.005, STEPS))


def _entropy_arriving(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/entropy"] = 1.2 - 0.85 * t + rng.normal(0, 0.01, STEPS)


def _clipping(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/clip_low"] += 0.2 * t
    curves["actor/clip_high"] += 0.2 * t


def _lopsided(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/clip_high"] += 0.12 * t


def _divergence(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/kl"] += 3 * t**2


def _frozen(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/kl"] = np.abs(rng.normal(0, 2e-5, STEPS))


def _spikes(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/grad_norm"][rng.choice(STEPS, 4, replace=False)] = 30.0


def _idle(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["actor/grad_norm"][rng.random(STEPS) < 0.6] = 0.0


def _one_part(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["reward/brief"] = t + rng.normal(0, 0.05, STEPS)
    curves["reward/verifier"] = 0.3 + rng.normal(0, 0.005, STEPS)
    curves["reward/mean"] = curves["reward/verifier"] + 0.2 * curves["reward/brief"]


def _overfit(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    curves["eval/avg@k"] = 0.4 - 0.15 * t + rng.normal(0, 0.02, STEPS)


def _plateau(curves: Curves, t: np.ndarray, rng: np.random.Generator) -> None:
    # A window without any trend, so that chance does not make one.
    curves["reward/mean"] = 0.3 + 0.2 * np.minimum(2 * t, 1) + 0.02 * np.tile([1.0, -1.0], STEPS // 2)


PATHOLOGIES: dict[str, tuple[Pathology, str, Status]] = {
    "all correct": (_all_correct, "groups_all_correct", "warn"),
    "all wrong": (_all_wrong, "groups_all_wrong", "fail"),
    "tied": (_tied, "groups_tied", "warn"),
    "truncation": (_truncation, "truncation", "fail"),
    "length without gain": (_length, "length_growth", "warn"),
    "reward follows length": (_reward_follows_length, "length_growth", "warn"),
    "entropy collapsed": (_entropy, "entropy_collapse", "fail"),
    "entropy collapsing": (_entropy_arriving, "entropy_collapse", "warn"),
    "clipping": (_clipping, "clip_fraction", "warn"),
    "lopsided clipping": (_lopsided, "clip_asymmetry", "warn"),
    "divergence": (_divergence, "kl", "warn"),
    "frozen": (_frozen, "kl", "warn"),
    "spikes": (_spikes, "gradient_spikes", "warn"),
    "no gradient": (_idle, "zero_gradients", "warn"),
    "one part": (_one_part, "reward_part", "fail"),
    "overfit": (_overfit, "held_out", "fail"),
    "plateau": (_plateau, "plateau", "warn"),
}
SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_run_has_no_finding(seed: int) -> None:
    findings = findings_of(healthy(np.random.default_rng(seed))[0])
    assert {name: f.status for name, f in findings.items()} == dict.fromkeys(CHECKS, "ok")
    assert not any(f.advice for f in findings.values())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", PATHOLOGIES)
def test_a_pathology_raises_its_own_finding(name: str, seed: int) -> None:
    change, check, least = PATHOLOGIES[name]
    rng = np.random.default_rng(seed)
    curves, t = healthy(rng)
    change(curves, t, rng)
    finding = findings_of(curves)[check]
    assert finding.status in ("warn", "fail") if least == "warn" else finding.status == "fail"
    assert finding.advice
    assert finding.numbers


@pytest.mark.parametrize("seed", SEEDS)
def test_a_longer_answer_that_helps_is_no_finding(seed: int) -> None:
    curves, t = healthy(np.random.default_rng(seed))
    curves["tokens/response_mean"] *= 1 + 1.5 * t
    assert findings_of(curves)["length_growth"].status == "ok"


def test_the_most_frequent_cause_gets_the_finding() -> None:
    curves, _ = healthy(np.random.default_rng(0))
    curves["groups/all_correct"][:], curves["groups/all_wrong"][:] = 4, 6
    curves["groups/zero_variance"][:] = 10
    findings = findings_of(curves)
    assert findings["groups_all_wrong"].status == "warn"
    assert findings["groups_all_correct"].status == "ok"
    assert findings["groups_all_wrong"].numbers == {"share": 6 / 16, "zero_variance": 10 / 16}


def test_a_run_without_rows_skips_everything_and_says_why() -> None:
    findings = diagnose([])
    assert [f.name for f in findings] == list(CHECKS)
    assert all(f.status == "skip" and f.detail for f in findings)


def test_gaps_are_neither_zeros_nor_infinities() -> None:
    """Rows that only carry an evaluation have NaN in every training column."""
    curves, _ = healthy(np.random.default_rng(1))
    for name in ("actor/grad_norm", "actor/entropy", "reward/mean"):
        curves[name][::3] = math.nan
    assert {f.status for f in findings_of(curves).values()} <= {"ok", "skip"}


def test_a_steady_gradient_has_no_spikes() -> None:
    """Its deviation is tiny, so a sigma rule alone would call a rise of 2% a spike."""
    curves, _ = healthy(np.random.default_rng(2))
    curves["actor/grad_norm"] = np.full(STEPS, 0.5)
    curves["actor/grad_norm"][50] = 0.51
    assert findings_of(curves)["gradient_spikes"].status == "ok"


def test_what_was_not_measured_is_skipped() -> None:
    curves, _ = healthy(np.random.default_rng(3))
    curves["actor/kl"][:] = 0
    curves["actor/clip_low"][:] = curves["actor/clip_high"][:] = 0
    findings = findings_of(curves)
    assert findings["kl"].status == findings["clip_fraction"].status == findings["clip_asymmetry"].status == "skip"


def test_steps_with_nothing_to_train_on_changed_nothing() -> None:
    rows = [{"step": float(n), "actor/updates": 0.0} for n in range(10)]
    finding = next(f for f in diagnose(rows) if f.name == "zero_gradients")
    assert (finding.status, finding.numbers["share"]) == ("fail", 1.0)


def test_a_part_is_judged_from_150_rows_on() -> None:
    rng = np.random.default_rng(4)
    curves, t = healthy(rng)
    _one_part(curves, t, rng)
    rows = [{"step": float(i), **{name: float(curve[i]) for name, curve in curves.items()}} for i in range(149)]
    finding = next(f for f in diagnose(rows, [], WEIGHTS) if f.name == "reward_part")
    assert finding.status == "skip"
    assert "150" in finding.detail


def test_a_part_whose_weight_fades_is_weighed_as_it_was() -> None:
    """At a constant weight the second part would own the reward; it counted only while it did not move."""
    rng = np.random.default_rng(5)
    curves, _ = healthy(rng)
    curves["reward/brief"] = np.where(np.arange(STEPS) < 20, 0.5, rng.random(STEPS) * 20)
    rows = [{"step": float(i), **{name: float(curve[i]) for name, curve in curves.items()}} for i in range(STEPS)]

    def status(weight: float | Schedule) -> str:
        findings = diagnose(rows, [], {"verifier": 1.0, "brief": weight})
        return next(f.status for f in findings if f.name == "reward_part")

    assert status(0.2) == "fail"
    assert status(Schedule(0.2, 0.0, 20)) == "ok"
