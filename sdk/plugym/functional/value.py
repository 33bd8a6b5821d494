"""The critic's loss. Where its targets come from is `returns.py` (`gae`)."""

from __future__ import annotations

import torch
from torch import Tensor


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float | None = None) -> Tensor:
    """Squared error of the value head per token, with PPO's optional clip.

    `1/2 max((V - R)^2, (V_c - R)^2)` with `V_c = V_old + clamp(V - V_old, -clip, clip)`: the value clipping
    of PPO's published code, described by Engstrom et al. 2020 (arXiv 2005.12729) section 3. Without `clip`,
    `1/2 (V - R)^2`.

    Args:
        values: float[T], the value head's output, with gradient.
        old_values: float[T], its output at the start of the step.
        returns: float[T], targets.
        clip: how far the value may move in one step before its gradient stops, above 0; None for no limit.

    Returns:
        float[T].

    Raises:
        ValueError: `clip` is not above 0.

    >>> import torch
    >>> value_loss(torch.tensor([1.0]), torch.tensor([0.0]), torch.tensor([1.0]), clip=0.5).tolist()
    [0.125]
    """
    error = (values - returns).square()
    if clip is None:
        return 0.5 * error
    if clip <= 0:
        raise ValueError(f"clip={clip} must be above 0; use None for an unclipped value loss")
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.max(error, (clipped - returns).square())
