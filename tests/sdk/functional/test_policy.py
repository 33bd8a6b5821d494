"""Ratios and surrogates against loops that follow the equations branch by branch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.functional import (
    aggregate,
    cispo_loss,
    clip_fractions,
    clipped_surrogate,
    gspo_ratio,
    log_ratio,
    sequence_log_ratio,
)

LOW, HIGH, DUAL = 0.2, 0.28, 10.0

tokens = st.lists(st.tuples(st.floats(-4, 4), st.floats(-3, 3)), min_size=1, max_size=20)


def _surrogate(ratio: float, advantage: float, dual: float | None) -> tuple[float, float]:
    """Loss and its derivative by the log ratio, case by case."""
    if advantage >= 0:
        return (-advantage * ratio, -advantage * ratio) if ratio <= 1 + HIGH else (-advantage * (1 + HIGH), 0.0)
    if dual is not None and ratio > dual:
        return -advantage * dual, 0.0
    return (-advantage * ratio, -advantage * ratio) if ratio >= 1 - LOW else (-advantage * (1 - LOW), 0.0)


@pytest.mark.parametrize(
    ("advantage", "delta", "loss"),
    [(1, 0, -1), (1, 0.3, -1.28), (1, -0.3, -0.740818), (-1, 0.3, 1.349859), (-1, -0.3, 0.8), (-1, 3, 10)],
)
def test_published_token_losses(advantage: float, delta: float, loss: float) -> None:
    ratio = log_ratio(torch.tensor([delta]), torch.zeros(1)).exp()
    per_token = clipped_surrogate(ratio, torch.tensor([float(advantage)]), LOW, HIGH, DUAL)
    assert per_token.item() == pytest.approx(loss, abs=1e-6)


@given(tokens, st.sampled_from([None, 1.5, DUAL]))
def test_clipped_surrogate_against_its_cases(pairs: list[tuple[float, float]], dual: float | None) -> None:
    delta = torch.tensor([d for d, _ in pairs], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([a for _, a in pairs], dtype=torch.float64)
    ratio = delta.exp()
    losses = clipped_surrogate(ratio, advantages, LOW, HIGH, dual)
    losses.sum().backward()
    expected = [_surrogate(math.exp(d), a, dual) for d, a in pairs]
    assert losses.tolist() == pytest.approx([loss for loss, _ in expected], abs=1e-9)
    assert delta.grad.tolist() == pytest.approx([slope for _, slope in expected], abs=1e-9)
    # A clipped token is one whose gradient is gone although its advantage is not.
    clipped = sum(slope == 0 and a != 0 for (_, slope), (_, a) in zip(expected, pairs, strict=True))
    fractions = clip_fractions(ratio, advantages, LOW, HIGH, dual)
    assert sum(fractions).item() == pytest.approx(clipped / len(pairs))


def test_clip_fractions_by_side() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.5, 1.5, 20.0, 1.0, 1.0, 1.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 0.0])
    assert [share.item() for share in clip_fractions(ratio, advantages, LOW, HIGH, DUAL)] == [0.125] * 3
    assert clip_fractions(ratio, advantages, LOW, HIGH).dual.item() == 0.0
    nothing = clip_fractions(torch.zeros(0), torch.zeros(0), LOW, HIGH, DUAL)
    assert [share.item() for share in nothing] == [0.0, 0.0, 0.0]


def test_no_upper_bound() -> None:
    losses = clipped_surrogate(torch.tensor([50.0]), torch.tensor([1.0]), LOW, math.inf)
    assert losses.tolist() == [-50.0]


@pytest.mark.parametrize("delta", [-1e4, -50.0, 50.0, 1e4])
@pytest.mark.parametrize("advantage", [-3.0, 0.0, 3.0])
def test_gradients_are_finite_at_extreme_log_ratios(delta: float, advantage: float) -> None:
    """One token with probability 1e-44 under the old policy must not end a run."""
    index, counts = torch.tensor([0, 0]), torch.tensor([2])
    old, advantages = torch.tensor([-delta, 0.0]), torch.full((2,), advantage)
    for dual in (None, DUAL):
        for level in ("token", "sequence", "gspo"):
            logp = torch.zeros(2, requires_grad=True)
            if level == "token":
                ratio = log_ratio(logp, old).exp()
            elif level == "sequence":
                ratio = sequence_log_ratio(logp, old, index, counts).exp()
            else:
                ratio = gspo_ratio(logp, old, index, counts)
            loss = clipped_surrogate(ratio, advantages, LOW, HIGH, dual) + cispo_loss(
                logp, ratio, advantages, clip_high=4.0
            )
            loss.sum().backward()
            assert torch.isfinite(loss).all()
            assert torch.isfinite(logp.grad).all()


def test_log_ratio_clamp() -> None:
    logp = torch.tensor([0.0, 5.0, -300.0, 300.0], requires_grad=True)
    clamped = log_ratio(logp, torch.zeros(4))
    assert clamped.tolist() == [0.0, 5.0, -20.0, 20.0]
    clamped.sum().backward()
    assert logp.grad.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert log_ratio(logp, torch.zeros(4), clamp=None).tolist() == [0.0, 5.0, -300.0, 300.0]


ragged = st.lists(st.lists(st.floats(-2, 2), max_size=6), min_size=1, max_size=5).filter(any)


def _flat(rows: list[list[float]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.float64)
    index = torch.tensor([i for i, row in enumerate(rows) for _ in row])
    return flat, index, torch.tensor([len(row) for row in rows])


@given(ragged, st.randoms(use_true_random=False))
def test_sequence_log_ratio_is_the_mean_of_the_trajectory(rows: list[list[float]], random) -> None:
    """Also when the tokens of the trajectories are interleaved."""
    delta, index, counts = _flat(rows)
    order = list(range(len(delta)))
    random.shuffle(order)
    ratios = sequence_log_ratio(delta[order], torch.zeros_like(delta), index[order], counts)
    means = [sum(row) / len(row) if row else None for row in rows]
    assert ratios.tolist() == pytest.approx([means[i] for i in index[order]], abs=1e-12)


@settings(max_examples=50)
@given(ragged, st.sampled_from(["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"]))
def test_gspo_equals_its_token_form_for_one_advantage_per_trajectory(rows: list[list[float]], mode) -> None:
    delta, index, counts = _flat(rows)
    advantages = torch.tensor([(-1) ** i * (i + 0.5) for i in range(len(rows))], dtype=torch.float64)[index]
    results = []
    for ratio_of in (gspo_ratio, lambda *args: sequence_log_ratio(*args).exp()):
        logp = delta.clone().requires_grad_()
        losses = clipped_surrogate(ratio_of(logp, torch.zeros_like(delta), index, counts), advantages, LOW, HIGH, DUAL)
        loss = aggregate(losses, mode, index, counts, len(delta), len(rows))
        loss.backward()
        results.append([loss.item(), *logp.grad.tolist()])
    assert results[0] == pytest.approx(results[1], abs=1e-9)


def test_gspo_credits_a_turn_with_its_own_advantage_and_plain_gspo_with_the_mean() -> None:
    index, counts = torch.tensor([0, 0]), torch.tensor([2])
    advantages = torch.tensor([1.0, -3.0])
    gradients = []
    for ratio_of in (gspo_ratio, lambda *args: sequence_log_ratio(*args).exp()):
        logp = torch.zeros(2, requires_grad=True)
        (ratio_of(logp, torch.zeros(2), index, counts) * advantages).sum().backward()
        gradients.append(logp.grad.tolist())
    assert gradients == [[1.0, -3.0], [-1.0, -1.0]]


def test_sequence_mean_keeps_its_digits_on_long_trajectories() -> None:
    """GRPO-SCR clips at 3e-4: the mean of 20,000 float32 differences must be good to far less than that."""
    draw = torch.Generator().manual_seed(0)
    delta = 1e-3 + 0.3 * torch.randn(20_000, generator=draw)
    index, counts = torch.zeros(20_000, dtype=torch.long), torch.tensor([20_000])
    ratio = sequence_log_ratio(delta, torch.zeros_like(delta), index, counts)
    assert ratio[0].item() == pytest.approx(delta.double().mean().item(), abs=1e-7)


@given(tokens, st.sampled_from([None, 0.2]))
def test_cispo_against_a_loop(pairs: list[tuple[float, float]], clip_low: float | None) -> None:
    logp = torch.tensor([-abs(d) for d, _ in pairs], dtype=torch.float64, requires_grad=True)
    ratio = torch.tensor([d for d, _ in pairs], dtype=torch.float64).exp()
    advantages = torch.tensor([a for _, a in pairs], dtype=torch.float64)
    losses = cispo_loss(logp, ratio, advantages, clip_high=1.0, clip_low=clip_low)
    losses.sum().backward()
    weights = [min(math.exp(d), 2.0) for d, _ in pairs]
    if clip_low is not None:
        weights = [max(weight, 1 - clip_low) for weight in weights]
    slopes = [-weight * a for weight, (_, a) in zip(weights, pairs, strict=True)]
    assert logp.grad.tolist() == pytest.approx(slopes, abs=1e-9)
    values = [-abs(d) * slope for (d, _), slope in zip(pairs, slopes, strict=True)]
    assert losses.tolist() == pytest.approx(values, abs=1e-9)


def test_cispo_has_no_gradient_through_the_ratio() -> None:
    logp = torch.zeros(1, requires_grad=True)
    cispo_loss(logp, logp.exp(), torch.ones(1), clip_high=1.0).sum().backward()
    assert logp.grad.tolist() == [-1.0]


def test_bad_arguments() -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match=r"clip_low=-0\.1 and clip_high=0\.2 must not be negative"):
        clipped_surrogate(one, one, -0.1, 0.2)
    with pytest.raises(ValueError, match=r"dual_clip=1\.2 must be above 1 \+ clip_high"):
        clipped_surrogate(one, one, 0.2, 0.28, dual_clip=1.2)
    with pytest.raises(ValueError, match="one entry per token"):
        sequence_log_ratio(torch.ones(3), torch.ones(3), torch.zeros(2, dtype=torch.long), torch.tensor([2]))
