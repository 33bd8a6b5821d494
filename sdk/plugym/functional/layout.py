"""The flat layout of a micro-batch: its check, and the mean over a trajectory.

All trained tokens stand in one 1-D row, whichever stream or turn they come from; `traj_index: long[T]`
gives the trajectory of each, in [0, n_traj), and `traj_tokens: long[n_traj]` their number per trajectory.
A trajectory is never split over micro-batches, so these counts are those of the whole trajectory.
"""

from __future__ import annotations

from torch import Tensor


def require_one_per_token(per_token: Tensor, traj_index: Tensor) -> None:
    """Raise ValueError unless both are 1-D with one entry per trained token.

    >>> import torch
    >>> require_one_per_token(torch.zeros(2, 3), torch.zeros(6, dtype=torch.long))
    Traceback (most recent call last):
    ...
    ValueError: per-token values have shape (2, 3), traj_index (6,); both must be flat, one entry per token
    """
    if per_token.ndim != 1 or per_token.shape != traj_index.shape:
        raise ValueError(
            f"per-token values have shape {tuple(per_token.shape)}, traj_index {tuple(traj_index.shape)}; "
            "both must be flat, one entry per token"
        )


def trajectory_means(per_token: Tensor, traj_index: Tensor, traj_tokens: Tensor) -> Tensor:
    """Mean over the trained tokens of each trajectory: float[n_traj], 0 for one without tokens.

    Differentiable in `per_token: float[T]`. Raises ValueError when the layout does not fit.

    >>> import torch
    >>> counts = torch.tensor([2, 1, 0])
    >>> trajectory_means(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]), counts).tolist()
    [2.0, 5.0, 0.0]
    """
    require_one_per_token(per_token, traj_index)
    sums = per_token.new_zeros(traj_tokens.shape[0]).index_add(0, traj_index, per_token)
    return sums / traj_tokens.clamp(min=1)
