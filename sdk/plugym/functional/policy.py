"""Policy-gradient losses per token: importance ratios, the clipped surrogate, CISPO, clip fractions.

Everything is flat, 1-D over the T trained tokens of a micro-batch: `traj_index: long[T]` says which
trajectory a token belongs to and `traj_tokens: long[n_traj]` how many trained tokens that trajectory has.
'Sequence' means trajectory. Losses come back per token; `aggregation.py` makes one number of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .layout import trajectory_means


def log_ratio(logp: Tensor, old_logp: Tensor, clamp: float | None = 20.0) -> Tensor:
    """Log importance ratio of each token: `clamp(logp - old_logp, -c, c)`.

    The exponential is `r_t` of PPO (arXiv 1707.06347) section 3. The clamp keeps it and its gradient finite:
    beyond it the gradient is 0. verl clamps at 20; TRL does not clamp (`clamp=None`).

    Args:
        logp: float[T], log-probs under the policy being trained.
        old_logp: float[T], log-probs under the policy at the start of the step.
        clamp: bound on the absolute value, or None.

    Returns:
        float[T].

    >>> import torch
    >>> log_ratio(torch.tensor([-1.0, 99.0]), torch.tensor([-1.5, 0.0])).tolist()
    [0.5, 20.0]
    """
    difference = logp - old_logp
    return difference if clamp is None else difference.clamp(-clamp, clamp)


def sequence_log_ratio(
    logp: Tensor, old_logp: Tensor, traj_index: Tensor, traj_tokens: Tensor, clamp: float | None = 20.0
) -> Tensor:
    """Length-normalised log ratio of each token's trajectory: `log s_i = mean_t (logp_t - old_logp_t)`.

    GSPO (arXiv 2507.18071) equation 7; GRPO-SCR of Open-AgentRL uses the same. The mean is over the trained
    tokens of the trajectory and the gradient goes through it: each token of trajectory i moves every
    `log s_i` by `1 / |y_i|`.

    Args:
        logp: float[T], log-probs under the policy being trained.
        old_logp: float[T], log-probs under the policy at the start of the step.
        traj_index: long[T].
        traj_tokens: long[n_traj].
        clamp: bound on the absolute value of the mean, or None.

    Returns:
        float[T]: the value of the trajectory, at each of its tokens.

    >>> import torch
    >>> logp, old = torch.tensor([0.0, -1.0, -2.0]), torch.tensor([-1.0, -2.0, -2.5])
    >>> sequence_log_ratio(logp, old, torch.tensor([0, 0, 1]), torch.tensor([2, 1])).tolist()
    [1.0, 1.0, 0.5]
    """
    means = trajectory_means(logp - old_logp, traj_index, traj_tokens)
    return (means if clamp is None else means.clamp(-clamp, clamp))[traj_index]


def gspo_ratio(
    logp: Tensor, old_logp: Tensor, traj_index: Tensor, traj_tokens: Tensor, clamp: float | None = 20.0
) -> Tensor:
    """Sequence ratio with a token-wise gradient: `s_it = sg[s_i] * pi_t / sg[pi_t]`.

    GSPO-token, GSPO (arXiv 2507.18071) equations 13 and 14. The value at every token is the ratio of its
    trajectory; the gradient is that of the token's own log-prob, `d s_it / d logp_t = s_i`. Where all tokens
    of a trajectory share one advantage, losses and gradients equal those of plain GSPO,
    `sequence_log_ratio(...).exp()`, under every aggregation mode. Where the advantage differs by turn, this
    one credits each token with its own and plain GSPO with the mean.

    Args:
        logp: float[T], log-probs under the policy being trained.
        old_logp: float[T], log-probs under the policy at the start of the step.
        traj_index: long[T].
        traj_tokens: long[n_traj].
        clamp: bound on the absolute value of the sequence log ratio, or None.

    Returns:
        float[T].

    >>> import torch
    >>> logp = torch.tensor([0.0, -1.0], requires_grad=True)
    >>> ratio = gspo_ratio(logp, torch.tensor([0.0, -1.0]), torch.tensor([0, 0]), torch.tensor([2]))
    >>> (ratio * torch.tensor([1.0, 3.0])).sum().backward()
    >>> ratio.tolist(), logp.grad.tolist()
    ([1.0, 1.0], [1.0, 3.0])
    """
    value = sequence_log_ratio(logp.detach(), old_logp, traj_index, traj_tokens, clamp)
    return torch.exp(value + (logp - logp.detach()))


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> Tensor:
    """PPO's clipped loss per token, with decoupled bounds and an optional dual clip.

    `m = max(-A r, -A clamp(r, 1 - lo, 1 + hi))`: PPO (arXiv 1707.06347) equation 7 negated, with the
    separate upper bound of DAPO's clip-higher (arXiv 2503.14476, equation 10). With `dual_clip = c`, where
    `A < 0` the loss is `min(m, -A c)`: dual-clip PPO (arXiv 1912.09729); without it a token that became far
    more likely under a negative advantage has an unbounded loss.

    Args:
        ratio: float[T], importance ratio; finite (see `log_ratio`).
        advantages: float[T].
        clip_low: distance of the lower bound from 1.
        clip_high: distance of the upper bound from 1; `math.inf` for none.
        dual_clip: c, above `1 + clip_high`; None for no dual clip.

    Returns:
        float[T], the loss of each token (to be minimised).

    Raises:
        ValueError: a bound is negative, or `dual_clip` is not above `1 + clip_high`.

    >>> import torch
    >>> ratio, advantages = torch.tensor([1.5, 1.5, 50.0]), torch.tensor([1.0, -1.0, -1.0])
    >>> clipped_surrogate(ratio, advantages, 0.2, 0.28, dual_clip=10.0).tolist()
    [-1.2799999713897705, 1.5, 10.0]
    """
    if clip_low < 0 or clip_high < 0:
        raise ValueError(f"clip_low={clip_low} and clip_high={clip_high} must not be negative")
    loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high))
    if dual_clip is None:
        return loss
    if dual_clip <= 1.0 + clip_high:
        raise ValueError(f"dual_clip={dual_clip} must be above 1 + clip_high = {1.0 + clip_high}")
    return torch.where(advantages < 0, torch.min(loss, -advantages * dual_clip), loss)


def cispo_loss(
    logp: Tensor, ratio: Tensor, advantages: Tensor, clip_high: float, clip_low: float | None = None
) -> Tensor:
    """CISPO per token: `-sg[clamp(r, 1 - lo, 1 + hi)] * A * logp`.

    MiniMax-M1 (arXiv 2506.13585), the CISPO objective. The clipped ratio is a constant weight, so that
    no token's gradient vanishes. The paper uses no lower bound (the default); verl clips on both sides.
    TRL's `epsilon_high` is the absolute cap, that is `1 + clip_high`.

    Args:
        logp: float[T], log-probs under the policy being trained, with gradient.
        ratio: float[T], importance ratio; its gradient is not used.
        advantages: float[T].
        clip_high: distance of the upper bound from 1.
        clip_low: distance of the lower bound from 1, or None for no lower bound.

    Returns:
        float[T], the loss of each token.

    >>> import torch
    >>> logp = torch.tensor([-0.5, -2.0])
    >>> cispo_loss(logp, torch.tensor([1.0, 9.0]), torch.tensor([1.0, 1.0]), clip_high=2.0).tolist()
    [0.5, 6.0]
    """
    lower = None if clip_low is None else 1.0 - clip_low
    weight = ratio.detach().clamp(min=lower, max=1.0 + clip_high)
    return -weight * advantages * logp


class ClipFractions(NamedTuple):
    """Share of tokens, in [0, 1], whose gradient a clip has set to 0; scalars without gradient."""

    low: Tensor
    """`A < 0` and `r < 1 - clip_low`."""
    high: Tensor
    """`A > 0` and `r > 1 + clip_high`."""
    dual: Tensor
    """`A < 0` and `r > dual_clip`; 0 without a dual clip."""


@torch.no_grad()
def clip_fractions(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> ClipFractions:
    """Which share of the tokens `clipped_surrogate`, called with the same arguments, has clipped.

    Means over the T tokens given; weight them by T when joining micro-batches. No tokens give 0.

    Args:
        ratio: float[T], importance ratio.
        advantages: float[T].
        clip_low: as in `clipped_surrogate`.
        clip_high: as in `clipped_surrogate`.
        dual_clip: as in `clipped_surrogate`.

    Returns:
        `ClipFractions`, three float scalars.

    >>> import torch
    >>> ratio, advantages = torch.tensor([0.5, 1.5, 50.0, 1.0]), torch.tensor([-1.0, 1.0, -1.0, 1.0])
    >>> [share.item() for share in clip_fractions(ratio, advantages, 0.2, 0.28, dual_clip=10.0)]
    [0.25, 0.25, 0.25]
    """
    count = max(ratio.numel(), 1)
    falling = advantages < 0
    low = falling & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    dual = falling & (ratio > (torch.inf if dual_clip is None else dual_clip))
    return ClipFractions(*(clipped.sum() / count for clipped in (low, high, dual)))
