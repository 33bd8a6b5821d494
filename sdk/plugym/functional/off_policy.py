"""The gap between the engine that sampled a token and the model that trains on it.

A sampler in other precision, with another kernel or an older policy version gives other log-probs than
the learner for the same token. This module weighs tokens by that gap and measures it; nothing here
carries a gradient. Ratios against the policy at the start of a step are in `policy.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .kl import kl_penalty
from .modes import CorrectionMode, check_mode
from .policy import log_ratio

ICEPOP_BAND = (0.5, 5.0)
"""IcePop's published bounds of the ratio, alpha and beta."""


@torch.no_grad()
def importance_weights(
    old_logp: Tensor,
    rollout_logp: Tensor,
    mode: CorrectionMode = "off",
    cap: float = 2.0,
    band: tuple[float, float] = ICEPOP_BAND,
) -> Tensor:
    """Weight of each token's loss that corrects for having been sampled by another engine.

    With `k = exp(old_logp - rollout_logp)`, the training model's probability over the sampler's:

    - `off`: 1.
    - `tis`: `min(k, cap)`, truncated importance sampling, Yao et al. 2025, 'Your efficient RL framework secretly
      brings you off-policy RL training'; the truncation is of Ionides 2008.
    - `icepop`: `k` where `low <= k <= high`, else 0: a token that the two disagree about too much is masked. Ling Team
      2025, 'Every Step Evolves' (arXiv 2510.18855), the function M of IcePop's objective, with its alpha and beta as
      the band.

    Multiply the per-token loss by it. A masked token still counts in the denominator of a mean.

    Args:
        old_logp: float[T], log-probs by the training model at the start of the step.
        rollout_logp: float[T], log-probs as the sampling engine reported them.
        mode: which correction.
        cap: largest weight of `tis`, above 0.
        band: (low, high) of `icepop`, both ends inside it; `0 <= low < high`.

    Returns:
        float[T], without gradient.

    Raises:
        ValueError: unknown mode, `cap` is not above 0, or `band` holds nothing.

    >>> import torch
    >>> importance_weights(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -4.0]), "tis").tolist()
    [1.0, 2.0]
    >>> importance_weights(torch.tensor([-1.0, -1.0]), torch.tensor([-1.0, -4.0]), "icepop").tolist()
    [1.0, 0.0]
    """
    check_mode(mode, CorrectionMode, "importance correction")
    if cap <= 0:
        raise ValueError(f"cap={cap} must be above 0")
    low, high = band
    if not 0 <= low < high:
        raise ValueError(f"band={band} must be (low, high) with 0 <= low < high")
    if mode == "off":
        return torch.ones_like(old_logp)
    ratio = log_ratio(old_logp, rollout_logp).exp()
    if mode == "tis":
        return ratio.clamp(max=cap)
    return torch.where((ratio >= low) & (ratio <= high), ratio, 0.0)


@torch.no_grad()
def mismatch_kl(old_logp: Tensor, rollout_logp: Tensor) -> Tensor:
    """KL(sampling engine || training model) over the sampled tokens: mean of the k3 estimate.

    `mean_t(exp(d) - 1 - d)` with `d = old_logp - rollout_logp` (see `kl_penalty`). About 1e-11 in float32 on
    one machine, 1e-3 to 1e-2 between bfloat16 kernels.

    Args:
        old_logp: float[T], log-probs by the training model.
        rollout_logp: float[T], log-probs as the sampling engine reported them.

    Returns:
        A scalar in nats, without gradient; no tokens give 0.

    >>> import torch
    >>> round(mismatch_kl(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -2.1])).item(), 5)
    0.00259
    """
    return kl_penalty(rollout_logp, old_logp, "k3").sum() / max(old_logp.numel(), 1)
