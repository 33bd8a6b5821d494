"""Sample-based estimators of the KL divergence between the policy and a reference policy.

What belongs here compares two log-probs of the *same sampled token*. The gap between the engine that
sampled and the model that trains is `off_policy.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .modes import KLKind, check_mode


def kl_penalty(logp: Tensor, ref_logp: Tensor, kind: KLKind = "k3", clamp: float | None = 20.0) -> Tensor:
    """Estimate of KL(policy || reference) at each token, from tokens the policy sampled.

    With `d = clamp(logp - ref_logp, -c, c)`: `k1 = d`, unbiased but noisy and of either sign;
    `k2 = d^2 / 2`, biased but low variance; `k3 = exp(-d) - 1 + d`, unbiased and never negative. Schulman
    2020, http://joschu.net/blog/kl-approx.html; k3 is GRPO's, DeepSeekMath (arXiv 2402.03300) equation 4.

    As a loss term, `k1` has expected gradient 0: it belongs in a reward. `k2` has the gradient of the KL
    for on-policy tokens. TRL's 'bias-corrected' KL is `ratio * kl_penalty(...)`.

    Args:
        logp: float[T], log-probs under the policy being trained.
        ref_logp: float[T], log-probs under the reference policy.
        kind: which estimator.
        clamp: bound on `|d|`, beyond which the gradient is 0; None for no bound (TRL).

    Returns:
        float[T], in nats.

    Raises:
        ValueError: unknown kind.

    >>> import torch
    >>> logp, ref = torch.tensor([-1.0, -2.0]), torch.tensor([-2.0, -2.0])
    >>> [kl_penalty(logp, ref, kind).tolist() for kind in ("k1", "k2")]
    [[1.0, 0.0], [0.5, 0.0]]
    >>> [round(kl, 4) for kl in kl_penalty(logp, ref, "k3").tolist()]
    [0.3679, 0.0]
    """
    check_mode(kind, KLKind, "KL kind")
    difference = logp - ref_logp
    if clamp is not None:
        difference = difference.clamp(-clamp, clamp)
    if kind == "k1":
        return difference
    if kind == "k2":
        return 0.5 * difference.square()
    # expm1 keeps the digits that exp(-d) - 1 loses where the policies still agree.
    return torch.expm1(-difference) + difference
