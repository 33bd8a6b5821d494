"""GRPO on the way a run takes it: scored group -> advantages -> collate -> loss.

The loss is compared with a loop over tokens (`naive_loss`), and with TRL and verl through their golden values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from algo_cases import Sample, naive_loss, random_sample, scalars, scored, trajectory
from golden_cases import MAX_LENGTH, Case, Inputs

from plugym.algorithm import Aux, LossOutput, Need, collate, counted_trajectories, micro_batches, spread
from plugym.errors import PluginError
from plugym.registry import validate_settings
from plugym.reward import Score
from plugym.trajectory import TokenStream, Trajectory
from plugym_algos.grpo import GRPO, GRPOConfig
from plugym_algos.grpo_tcr import GRPOTCR, GRPOTCRConfig

DATA = Path(__file__).resolve().parents[2] / "data"


def gradient(loss: torch.Tensor, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    by_logp, by_entropy = torch.autograd.grad(loss, [sample.logp, sample.entropy], allow_unused=True)
    zeros = torch.zeros_like(sample.logp)
    return (zeros if by_logp is None else by_logp), (zeros if by_entropy is None else by_entropy)


# --- advantages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, -1, -1, 1], [0.866025, -0.866025, -0.866025, 0.866025]),
        ([1, -0.9, -0.8, -1.1], [1.487667, -0.46169, -0.359092, -0.666885]),
    ],
)
def test_advantages_of_known_groups(rewards: list[float], expected: list[float]) -> None:
    group = scored([trajectory(str(i)) for i in range(4)], [Score(float(r)) for r in rewards])
    assert scalars(GRPO(), group) == pytest.approx(expected, abs=1e-6)


def test_what_has_no_score_is_in_no_statistic() -> None:
    names = ["a", "lost", "b", "unscored", "c"]
    members = [trajectory(name, infra=name == "lost") for name in names]
    scores = [Score(1.0), Score(50.0), Score(0.0), Score.unscored("judge was down"), Score(0.0)]
    group = scored(members, scores)
    alone = scored([members[0], members[2], members[4]], [scores[0], scores[2], scores[4]])
    assert [t.id for t in counted_trajectories([group])] == ["a", "b", "c"]
    assert scalars(GRPO(), group) == scalars(GRPO(), alone)


def test_groups_do_not_mix() -> None:
    groups = [
        scored([trajectory(f"{g}{i}") for i in range(2)], [Score(float(i) + 10 * g) for i in range(2)])
        for g in range(2)
    ]
    first, second = (scalars(GRPO(), group) for group in groups)
    together = [float(a.streams[0][-1]) for a in GRPO().advantages(groups, Aux())]
    assert together == first + second
    assert first == pytest.approx(second)


def test_a_group_of_one_has_its_reward_as_advantage() -> None:
    group = scored([trajectory("a"), trajectory("b", infra=True)], [Score(0.7), Score(0.0)])
    assert scalars(GRPO(), group) == pytest.approx([0.7], abs=1e-5)


def test_a_group_without_scores_is_not_kept() -> None:
    group = scored([trajectory("a", infra=True)], [Score.unscored("lost")])
    assert not GRPO().keep(group)
    assert GRPO().advantages([group], Aux()) == []


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_equal_rewards_teach_nothing(value: float) -> None:
    group = scored([trajectory(str(i)) for i in range(3)], [Score(value)] * 3)
    members, advantages = counted_trajectories([group]), GRPO().advantages([group], Aux())
    assert all(advantage.is_zero for advantage in advantages)
    logp = torch.full((9,), -2.0, requires_grad=True)
    output = GRPO().loss(collate(members, advantages, logp=logp))
    output.loss.backward()
    assert output.loss.item() == 0
    assert logp.grad is not None
    assert not logp.grad.any()


def test_without_scaling_the_spread_of_rewards_counts() -> None:
    group = scored([trajectory("a"), trajectory("b")], [Score(3.0), Score(1.0)])
    assert scalars(GRPO(GRPOConfig(scale="none")), group) == [1.0, -1.0]


# --- loss ---------------------------------------------------------------------------------------------------------

VARIANTS = {
    "default": {},
    "token-mean": {"aggregation": "token-mean", "clip_high": 0.28},
    "sum": {"aggregation": "seq-mean-token-sum"},
    "dr_grpo": {"norm_length": 9, "aggregation": "seq-mean-token-sum-norm"},
    "dual": {"dual_clip": 1.5},
    "kl": {"kl_coef": 0.04},
    "kl-k2": {"kl_coef": 0.5, "kl_kind": "k2", "aggregation": "token-mean"},
    "entropy": {"entropy_coef": 0.01},
    "tis": {"correction": "tis", "tis_cap": 1.3},
    "icepop": {"correction": "icepop", "icepop_low": 0.9, "icepop_high": 1.2},
    "all": {"kl_coef": 0.1, "entropy_coef": 0.02, "correction": "tis", "dual_clip": 2.0, "aggregation": "token-mean"},
}
variants = pytest.mark.parametrize("settings", VARIANTS.values(), ids=VARIANTS.keys())


@variants
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_equal_a_loop_over_tokens(settings: dict[str, Any], seed: int) -> None:
    sample = random_sample(seed)
    config = GRPOConfig(**settings)
    ours, theirs = GRPO(config).loss(sample.batch()).loss, naive_loss(config, sample)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-5, abs=1e-6)
    for mine, naive in zip(gradient(ours, sample), gradient(theirs, sample), strict=True):
        torch.testing.assert_close(mine, naive, rtol=1e-4, atol=1e-6)


@variants
@pytest.mark.parametrize("max_tokens", [1, 25, 1000])
def test_micro_batches_add_up_to_the_mini_batch(settings: dict[str, Any], max_tokens: int) -> None:
    sample = random_sample(3)
    algo = GRPO(GRPOConfig(**settings))
    whole = algo.loss(sample.batch())
    parts = [algo.loss(sample.batch(which)) for which in micro_batches(sample.trajectories, max_tokens)]
    loss = torch.stack([part.loss for part in parts]).sum()
    assert loss.item() == pytest.approx(whole.loss.item(), rel=1e-5, abs=1e-6)
    torch.testing.assert_close(gradient(loss, sample), gradient(whole.loss, sample), rtol=1e-4, atol=1e-6)
    for name, value in whole.metrics.items():
        assert sum(part.metrics[name] for part in parts) == pytest.approx(value, rel=1e-5, abs=1e-6)


@variants
def test_leaving_out_zero_advantages_is_allowed_exactly_when_announced(settings: dict[str, Any]) -> None:
    sample = random_sample(4)
    silent = [0, 3]
    for i in silent:
        sample.advantages[i] = spread(sample.trajectories[i], 0.0)
    algo = GRPO(GRPOConfig(**settings))
    whole, rest = (gradient(algo.loss(sample.batch(which)).loss, sample) for which in (None, [1, 2, 4]))
    same = all(torch.allclose(one, other) for one, other in zip(whole, rest, strict=True))
    assert algo.zero_advantage_is_zero_loss == same
    assert algo.zero_advantage_is_zero_loss == (not algo.needs)


@variants
@pytest.mark.parametrize("spread_of_ratios", [3.0, 300.0])
def test_loss_and_gradient_stay_finite_far_off_policy(settings: dict[str, Any], spread_of_ratios: float) -> None:
    sample = random_sample(5, spread=spread_of_ratios)
    output = GRPO(GRPOConfig(**settings)).loss(sample.batch())
    assert math.isfinite(output.loss.item())
    assert all(part.isfinite().all() for part in gradient(output.loss, sample))
    assert all(math.isfinite(value) for value in output.metrics.values())


def test_two_streams_are_one_sequence() -> None:
    """The same tokens in one stream or two: the loss, a mean per sequence, may not change."""
    together = [trajectory("a", [[(2, 3), (1, 2)]]), trajectory("b", [[(2, 4)]])]
    apart = [trajectory("a", [[(2, 3)], [(6, 2)]]), trajectory("b", [[(2, 4)]])]
    losses = []
    for members in (together, apart):
        group = scored(members, [Score(1.0), Score(0.0)])
        logp = torch.linspace(-2, -1, 9, requires_grad=True)
        batch = collate(members, GRPO().advantages([group], Aux()), logp=logp)
        batch.old_logp = torch.linspace(-1.5, -1.4, 9)
        losses.append(GRPO().loss(batch).loss.item())
        assert batch.traj_tokens.tolist() == [5, 4]
    assert losses[0] == pytest.approx(losses[1])
    assert losses[0] != 0


def test_metrics_count_tokens_of_the_mini_batch() -> None:
    member = trajectory("a", [[(1, 4)]])
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0])
    logp = torch.tensor([-1.0, 0.0, -3.0, -0.9], requires_grad=True)
    for advantage, low, high in ((1.0, 0.0, 0.125), (-1.0, 0.125, 0.0)):
        batch = collate([member], [spread(member, advantage)], logp=logp, total_tokens=8, total_trajs=2)
        batch.old_logp = old
        metrics = GRPO(GRPOConfig(correction="tis", tis_cap=1.0)).loss(batch).metrics
        assert (metrics["clip_low"], metrics["clip_high"], metrics["clip_dual"]) == (low, high, 0.0)
        assert metrics["tis_capped"] == 0.5


def test_icepop_masks_what_sampler_and_learner_disagree_about() -> None:
    """Weights e^0 = 1, e^0.5 = 1.649, e^2 = 7.389 (above 5) and e^-1 = 0.368 (below 0.5), one advantage of 2."""
    member = trajectory("a", [[(1, 4)]])
    logp = torch.tensor([-1.0, -0.5, -0.1, -2.0], requires_grad=True)
    batch = collate([member], [spread(member, 2.0)], logp=logp)
    batch.old_logp = logp.detach()
    batch.rollout_logp = torch.tensor([-1.0, -1.0, -2.1, -1.0])
    output = GRPO(GRPOConfig(correction="icepop", aggregation="token-mean")).loss(batch)
    output.loss.backward()
    assert output.loss.item() == pytest.approx(-2 * (1 + math.exp(0.5)) / 4)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx([-0.5, -0.5 * math.exp(0.5), 0.0, 0.0])
    assert output.metrics["icepop_masked"] == 0.5
    assert "tis_capped" not in output.metrics


def test_icepop_wants_a_band() -> None:
    with pytest.raises(ValueError, match="it must be above icepop_low = 5"):
        GRPOConfig(icepop_low=5.0)


def test_the_truncated_weight_has_no_gradient() -> None:
    member = trajectory("a", [[(1, 2)]])
    logp = torch.tensor([-1.0, -0.5], requires_grad=True)
    batch = collate([member], [spread(member, 1.0)], logp=logp)
    GRPO(GRPOConfig(correction="tis", aggregation="token-mean")).loss(batch).loss.backward()
    assert logp.grad is not None
    # Sampled at log-prob -1: weights 1 and exp(0.5), each times -A / 2.
    assert logp.grad.tolist() == pytest.approx([-0.5, -math.exp(0.5) / 2])


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "needs"),
    [
        ({}, set()),
        ({"kl_coef": 0.1}, {Need.REF_LOGPROBS}),
        ({"entropy_coef": 0.1}, {Need.ENTROPY}),
        ({"kl_coef": 0.1, "entropy_coef": 0.1}, {Need.REF_LOGPROBS, Need.ENTROPY}),
    ],
)
def test_needs_follow_the_settings(settings: dict[str, float], needs: set[Need]) -> None:
    assert GRPO(GRPOConfig(**settings)).needs == needs
    assert GRPOTCR(GRPOTCRConfig(**settings)).needs == needs


@pytest.mark.parametrize(("settings", "missing"), [({"kl_coef": 0.1}, "ref_logp"), ({"entropy_coef": 0.1}, "entropy")])
def test_a_runner_that_ignores_needs_is_told(settings: dict[str, float], missing: str) -> None:
    member = trajectory("a")
    batch = collate([member], [spread(member, 1.0)], logp=torch.zeros(3, requires_grad=True))
    with pytest.raises(ValueError, match=f"needs TokenBatch.{missing}"):
        GRPO(GRPOConfig(**settings)).loss(batch)


@pytest.mark.parametrize("algo", [GRPO, GRPOTCR])
@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"aggregation": "seq-mean-token-sum-norm"}, "option --algo.aggregation of x: .*needs norm_length"),
        ({"aggregation": "mean"}, "option --algo.aggregation of x: .*'token-mean'"),
        ({"dual_clip": 1.1}, r"option --algo.dual_clip of x: .*above 1 \+ clip_high"),
        ({"clip_low": 1.0}, "option --algo.clip_low of x"),
        ({"kl_kind": "k1"}, "option --algo.kl_kind of x: .*'k2' or 'k3'"),
        ({"clip_hi": 0.3}, "did you mean --algo.clip_high?"),
    ],
)
def test_bad_settings_name_the_option(algo: type[GRPO], settings: dict[str, Any], says: str) -> None:
    with pytest.raises(PluginError, match=says):
        validate_settings(algo.Config, settings, prefix="--algo.", owner="x")


@pytest.mark.parametrize("algo", [GRPO, GRPOTCR])
def test_every_setting_is_described(algo: type[GRPO]) -> None:
    assert all(field.description for field in algo.Config.model_fields.values())


# --- other implementations ----------------------------------------------------------------------------------------


def golden() -> Iterator[Any]:
    """The golden cases that grpo or grpo_tcr can express: token ratios, clipped surrogate, plain KL."""
    for library in ("trl", "verl"):
        for number, batch in enumerate(json.loads((DATA / f"oracle_{library}.json").read_text())["batches"]):
            for entry in batch["losses"]:
                case = Case(**entry["case"])
                if (case.loss, case.ratio, case.kl_times_ratio) != ("clipped", "token", False) or case.kl == "k1":
                    continue
                inputs = Inputs(**batch["inputs"])
                yield pytest.param(library, case, inputs, entry, id=f"{library}-{case.name}-{number}")


def as_run(inputs: Inputs) -> tuple[list[Trajectory], Aux]:
    """The padded batch as the trajectories and log-probs that a runner would have."""
    members = []
    for number, (mask, old) in enumerate(zip(inputs.mask, inputs.old_logp, strict=True)):
        trained = np.array(mask, dtype=bool)
        zeros = np.zeros(len(mask), dtype=np.int64)
        logprobs = np.where(trained, old, 0.0).astype(np.float32)
        members.append(
            Trajectory(str(number), None, "g", streams=(TokenStream(zeros, trained, logprobs, zeros, zeros),))
        )

    def table(rows: list[list[float]]) -> dict[str, Any]:
        return {str(i): (np.array(row, dtype=np.float32),) for i, row in enumerate(rows)}

    return members, Aux(old_logprobs=table(inputs.old_logp), ref_logprobs=table(inputs.ref_logp))


@pytest.mark.parametrize(("library", "case", "inputs", "entry"), list(golden()))
def test_equals_other_implementations(library: str, case: Case, inputs: Inputs, entry: dict[str, Any]) -> None:
    members, aux = as_run(inputs)
    settings: dict[str, Any] = {
        "clip_low": case.clip_low,
        "clip_high": case.clip_high,
        "dual_clip": case.dual_clip,
        "norm_length": MAX_LENGTH,
        "aggregation": case.mode,
        "kl_coef": case.beta,
        "kl_kind": case.kl,
    }
    algo = GRPOTCR(GRPOTCRConfig(**settings)) if case.mode == "token-mean" else GRPO(GRPOConfig(**settings))
    mask = inputs.tensor("mask").bool()
    leaf = inputs.tensor("logp", torch.float32).requires_grad_()
    output: LossOutput = algo.loss(
        collate(
            members,
            [spread(member, value) for member, value in zip(members, inputs.advantages, strict=True)],
            logp=leaf[mask],
            aux=aux,
            # A trajectory without trained tokens counts in TRL's means and not in verl's.
            total_trajs=len(members) if library == "trl" else sum(map(any, inputs.mask)),
        )
    )
    output.loss.backward()
    assert output.loss.item() == pytest.approx(entry["loss"], abs=2e-6)
    torch.testing.assert_close(leaf.grad, torch.tensor(entry["grad"]), rtol=0, atol=2e-6)


def test_the_recipe_itself_is_among_the_golden_cases() -> None:
    """The comparison above covers grpo_tcr as it is by default, and the published grpo but for its tighter clip."""
    cases = [case.values[1] for case in golden()]
    recipe = GRPOTCRConfig()
    assert any(
        (case.mode, case.clip_low, case.clip_high, case.dual_clip, case.beta)
        == (recipe.aggregation, recipe.clip_low, recipe.clip_high, recipe.dual_clip, recipe.kl_coef)
        for case in cases
    )
    assert any((case.mode, case.dual_clip) == (GRPOConfig().aggregation, None) for case in cases)
