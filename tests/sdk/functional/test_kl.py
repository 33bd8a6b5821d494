"""KL estimators: values and gradients, and that they estimate the divergence of two real distributions."""

import math

import pytest
import torch

from plugym.functional import importance_weights, kl_penalty, mismatch_kl


@pytest.mark.parametrize("delta", [-3.0, -0.5, 0.0, 1e-3, 0.5, 3.0])
def test_values_and_gradients(delta: float) -> None:
    expected = {
        "k1": (delta, 1.0),
        "k2": (delta**2 / 2, delta),
        "k3": (math.exp(-delta) - 1 + delta, 1 - math.exp(-delta)),
    }
    for kind, (value, slope) in expected.items():
        logp = torch.tensor([delta - 1.0], dtype=torch.float64, requires_grad=True)
        kl = kl_penalty(logp, torch.tensor([-1.0], dtype=torch.float64), kind)
        kl.sum().backward()
        assert kl.item() == pytest.approx(value, abs=1e-12)
        assert logp.grad.item() == pytest.approx(slope, abs=1e-12)


def test_k1_and_k3_are_unbiased_and_k3_has_less_variance() -> None:
    draw = torch.Generator().manual_seed(0)
    policy = torch.randn(5, generator=draw, dtype=torch.float64).log_softmax(0)
    reference = (policy + 0.4 * torch.randn(5, generator=draw, dtype=torch.float64)).log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum().item()
    k1, k3 = (kl_penalty(policy, reference, kind) for kind in ("k1", "k3"))
    probs = policy.exp()
    assert (probs @ k1).item() == pytest.approx(exact, abs=1e-12)
    assert (probs @ k3).item() == pytest.approx(exact, abs=1e-12)
    assert (probs @ (k3 - exact) ** 2).item() < (probs @ (k1 - exact) ** 2).item()
    # The engine sampled, the model trains: KL(engine || model), in that order.
    sampled = torch.multinomial(probs, 200_000, replacement=True, generator=draw)
    assert mismatch_kl(reference[sampled], policy[sampled]).item() == pytest.approx(exact, rel=0.03)


def test_k3_keeps_small_divergences_in_float32() -> None:
    """exp(d) - 1 - d in float32 is rounding noise here."""
    assert kl_penalty(torch.tensor([-1.0]), torch.tensor([-1.0 + 2.0**-13])).item() == pytest.approx(2.0**-27, rel=1e-2)


@pytest.mark.parametrize("delta", [-1e5, -30.0, 30.0, 1e5])
@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_extreme_differences_stay_finite(delta: float, kind) -> None:
    logp = torch.tensor([delta], requires_grad=True)
    kl = kl_penalty(logp, torch.zeros(1), kind)
    kl.sum().backward()
    assert torch.isfinite(kl).all()
    assert logp.grad.tolist() == [0.0]


def test_the_clamp_can_be_switched_off() -> None:
    logp, ref = torch.tensor([30.0, -30.0]), torch.zeros(2)
    assert kl_penalty(logp, ref, "k1", clamp=None).tolist() == [30.0, -30.0]
    assert kl_penalty(logp, ref, "k3", clamp=None).tolist() == pytest.approx([29.0, math.exp(30) - 31])


def test_importance_weights() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -900.0, -1.0], requires_grad=True)
    rollout = torch.tensor([-1.0, -1.5, -4.0, -1.0, -900.0], requires_grad=True)
    weights = importance_weights(old, rollout, "tis")
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0, math.exp(-20), 2.0])
    assert importance_weights(old, rollout, "tis", cap=1.2).max().item() == pytest.approx(1.2)
    assert importance_weights(old, rollout).tolist() == [1.0] * 5
    assert not weights.requires_grad
    assert not importance_weights(old, rollout).requires_grad


def test_icepop_keeps_the_ratio_inside_its_band_and_masks_outside() -> None:
    """Ratios 1/4, 1/2, 1, 5, 6: both ends belong to the band."""
    rollout = torch.zeros(5, dtype=torch.float64)
    ratios = torch.tensor([0.25, 0.5, 1.0, 5.0, 6.0], dtype=torch.float64)
    weights = importance_weights(ratios.log(), rollout, "icepop", band=(0.5 - 1e-12, 5.0 + 1e-12))
    assert weights.tolist() == pytest.approx([0.0, 0.5, 1.0, 5.0, 0.0])
    assert importance_weights(ratios.log(), rollout, "icepop", band=(0.0, 1.0)).tolist() == pytest.approx(
        [0.25, 0.5, 1.0, 0.0, 0.0]
    )
    assert not importance_weights(ratios.log().requires_grad_(), rollout, "icepop").requires_grad


def test_mismatch_of_identical_log_probs_is_zero() -> None:
    logp = torch.tensor([-0.1, -7.0], requires_grad=True)
    assert mismatch_kl(logp, logp).item() == 0.0
    assert not mismatch_kl(logp, logp).requires_grad
    assert mismatch_kl(torch.zeros(0), torch.zeros(0)).item() == 0.0


def test_bad_arguments() -> None:
    one = torch.ones(1)
    with pytest.raises(ValueError, match="unknown KL kind 'k4'; valid: k1, k2, k3"):
        kl_penalty(one, one, "k4")
    with pytest.raises(ValueError, match="unknown importance correction 'mis'; valid: off, tis"):
        importance_weights(one, one, "mis")
    with pytest.raises(ValueError, match=r"cap=0\.0 must be above 0"):
        importance_weights(one, one, "tis", cap=0.0)
    with pytest.raises(ValueError, match=r"band=\(2\.0, 1\.0\) must be"):
        importance_weights(one, one, "icepop", band=(2.0, 1.0))
