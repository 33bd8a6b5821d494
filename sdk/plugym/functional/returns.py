"""Credit along the tokens of one trajectory: discounted returns and GAE. numpy only, no torch.

Inputs are the *trained* tokens of one trajectory in order. Observation tokens are not in this layout, so
they are skipped by construction: a value or an advantage passes from the last token of one turn straight
to the first token of the next. Statistics over several trajectories are in `statistics.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .statistics import FloatArray, finite_vector


def _discounted_suffix_sums(values: FloatArray, decay: float) -> FloatArray:
    """`y_t = sum_{l >= 0} decay^l values_{t+l}`, float64[T].

    By doubling: after the pass with step s, y_t covers the 2s terms from t on. That is log2(T) array
    operations instead of T steps of the interpreter, which matters at 20,000 tokens a trajectory.
    """
    sums = values.copy()
    step, factor = 1, decay
    while step < sums.size and factor != 0.0:
        sums[:-step] += factor * sums[step:]
        step, factor = 2 * step, factor * factor
    return sums


def _check_unit(value: float, name: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}={value} must be in [0, 1]")


def discounted_returns(rewards: ArrayLike, gamma: float) -> FloatArray:
    """Reward-to-go of each token: `G_t = sum_{l >= 0} gamma^l r_{t+l}`.

    Sutton and Barto, Reinforcement Learning (2nd ed.) equation 3.8; the return of REINFORCE++.

    Args:
        rewards: float[T], reward of each trained token of one trajectory.
        gamma: discount per trained token, in [0, 1].

    Returns:
        float64[T].

    Raises:
        ValueError: a reward is not finite or `gamma` is outside [0, 1].

    >>> discounted_returns([0, 0, 1], gamma=0.5).tolist()
    [0.25, 0.5, 1.0]
    """
    _check_unit(gamma, "gamma")
    return _discounted_suffix_sums(finite_vector(rewards, "rewards"), gamma)


def gae(
    rewards: ArrayLike, values: ArrayLike, gamma: float, lam: float, *, bootstrap: float = 0.0
) -> tuple[FloatArray, FloatArray]:
    """Generalised advantage estimates and value targets of one trajectory.

    `delta_t = r_t + gamma V_{t+1} - V_t`, `A_t = sum_{l >= 0} (gamma lam)^l delta_{t+l}`, Schulman et al.
    2015 (arXiv 1506.02438) equation 16; the value target is `A_t + V_t`. Advantages are not whitened here:
    that is a statistic of the whole batch.

    Args:
        rewards: float[T], reward of each trained token.
        values: float[T], the critic's value before each trained token.
        gamma: discount per trained token, in [0, 1].
        lam: trade-off between bias (0) and variance (1), in [0, 1].
        bootstrap: value after the last token; 0 for an episode that ended, the critic's estimate for one
            that was cut and would have gone on.

    Returns:
        `(advantages, returns)`, both float64[T].

    Raises:
        ValueError: the lengths differ, a number is not finite, or `gamma` or `lam` is outside [0, 1].

    >>> advantages, returns = gae([0, 0, 1], [0.5, 0.5, 0.5], gamma=1.0, lam=1.0)
    >>> advantages.tolist(), returns.tolist()
    ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0])
    """
    _check_unit(gamma, "gamma")
    _check_unit(lam, "lam")
    reward, value = finite_vector(rewards, "rewards"), finite_vector(values, "values")
    if reward.size != value.size:
        raise ValueError(f"{reward.size} rewards but {value.size} values; there must be one of each per token")
    following = finite_vector(np.append(value[1:], bootstrap)[: value.size], "values")
    advantages = _discounted_suffix_sums(reward + gamma * following - value, gamma * lam)
    return advantages, advantages + value
