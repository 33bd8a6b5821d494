"""How per-token losses become the loss of a mini-batch.

The denominators are counts of the whole mini-batch, given by the caller, never of the micro-batch at hand:
so the losses of micro-batches add up to the loss of the mini-batch, however it is split. Means over
micro-batches, the usual shortcut, weigh tokens by the company they happen to be batched with.
"""

from __future__ import annotations

from torch import Tensor

from .layout import require_one_per_token
from .modes import AggregationMode, check_mode


def aggregate(
    per_token: Tensor,
    mode: AggregationMode,
    traj_index: Tensor,
    traj_tokens: Tensor,
    total_tokens: int,
    total_trajs: int,
    norm_length: int | None = None,
) -> Tensor:
    """This micro-batch's share of the mini-batch loss; the shares sum to the loss.

    With `l_it` the loss of token t of trajectory i, n_i its trained tokens and N trajectories:

    - `token-mean`: `sum_it l_it / sum_i n_i`; DAPO (arXiv 2503.14476) equation 12, the T of GRPO-TCR.
    - `seq-mean-token-mean`: `1/N sum_i 1/n_i sum_t l_it`; GRPO (arXiv 2402.03300) equation 3.
    - `seq-mean-token-sum`: `1/N sum_i sum_t l_it`; REINFORCE over whole trajectories.
    - `seq-mean-token-sum-norm`: the same over a constant `norm_length`; Dr. GRPO (arXiv 2503.20783).

    Args:
        per_token: float[T], loss of each trained token of the micro-batch.
        mode: one of the above.
        traj_index: long[T], trajectory of each token, in [0, n_traj).
        traj_tokens: long[n_traj], trained tokens of each trajectory of the micro-batch.
        total_tokens: trained tokens of the mini-batch.
        total_trajs: trajectories of the mini-batch. One without trained tokens adds nothing to the sum but
            counts here if the caller counts it (TRL does, verl does not).
        norm_length: constant length for `seq-mean-token-sum-norm`, in tokens.

    Returns:
        A scalar; 0, still differentiable, for a micro-batch without tokens.

    Raises:
        ValueError: unknown mode, shapes that differ, a mini-batch without trained tokens, or
            `seq-mean-token-sum-norm` without a positive `norm_length`.

    >>> import torch
    >>> losses, index = torch.tensor([1.0, 1.0, 0.5, 0.5, 0.5, 0.5]), torch.tensor([0, 0, 1, 1, 1, 1])
    >>> counts = (index, torch.tensor([2, 4]), 6, 2)
    >>> [round(aggregate(losses, mode, *counts).item(), 6) for mode in ("token-mean", "seq-mean-token-mean")]
    [0.666667, 0.75]
    """
    check_mode(mode, AggregationMode, "aggregation mode")
    require_one_per_token(per_token, traj_index)
    if total_tokens < 1 or total_trajs < 1:
        raise ValueError(
            f"{total_tokens} trained tokens in {total_trajs} trajectories: mini-batch has no loss; skip it"
        )
    if mode == "token-mean":
        return per_token.sum() / total_tokens
    if mode == "seq-mean-token-mean":
        return (per_token / traj_tokens[traj_index]).sum() / total_trajs
    if mode == "seq-mean-token-sum":
        return per_token.sum() / total_trajs
    if norm_length is None or norm_length < 1:
        raise ValueError(f"aggregation {mode!r} needs norm_length, the constant to divide by, >= 1")
    return per_token.sum() / (total_trajs * norm_length)
