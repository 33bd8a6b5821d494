"""Statistics over rewards and advantages: group baselines, whitening, pass@k. numpy only, no torch.

A *group* is the set of trajectories sampled for one task. Trajectories without a score (infrastructure
failures) are left out by the caller: nothing here knows about them. All results are float64. What runs
along the tokens of one trajectory is in `returns.py`; what changes a reward before it gets here is in
`shaping.py`.
"""

from __future__ import annotations

from math import comb

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .modes import AdvantageScale, check_mode

FloatArray = NDArray[np.float64]

_ROUNDING = 1e-12
"""Values whose spread is below this share of their size are equal up to rounding. Their advantage is
exactly 0: a group that teaches nothing must be recognisable by `advantage == 0`, and dividing rounding
noise by its own standard deviation (`eps=0`) would turn it into +-1."""


def finite_vector(values: ArrayLike, what: str) -> FloatArray:
    """`values` as float64[N]; ValueError names the first entry that is NaN or infinite.

    >>> finite_vector([1, float("nan")], "rewards")
    Traceback (most recent call last):
    ...
    ValueError: rewards[1] is nan; every value must be finite
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{what} must be one-dimensional, got shape {array.shape}")
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise ValueError(f"{what}[{bad[0]}] is {array[bad[0]]}; every value must be finite")
    return array


def _all_equal(values: FloatArray) -> bool:
    return bool(np.ptp(values) <= _ROUNDING * np.abs(values).max())


def group_advantages(
    rewards: ArrayLike, *, scale: AdvantageScale = "std", eps: float = 1e-6, ddof: int = 1
) -> FloatArray:
    """Advantages relative to the other trajectories of the group.

    `scale="std"`: `A_i = (R_i - mean(R)) / (std(R) + eps)`, GRPO, DeepSeekMath (arXiv 2402.03300)
    section 4.1.2. `scale="none"`: `A_i = R_i - mean(R)`, Dr. GRPO (arXiv 2503.20783).

    `std` divides by `G - ddof`: 1, the sample deviation, is what TRL, verl and Open-AgentRL use; RLAnything
    standardises with the population's (`ddof=0, eps=0`). A group of one has mean 0 and std 1, so its
    reward is its advantage; an empty group has no advantages. Equal rewards give exactly 0.

    Args:
        rewards: float[G], one score per trajectory.
        scale: divide by the group's deviation or not.
        eps: added to the deviation; TRL uses 1e-4, verl 1e-6.
        ddof: 1 for the sample deviation, 0 for the population's.

    Returns:
        float64[G], in the order of `rewards`.

    Raises:
        ValueError: a reward is NaN or infinite, or `scale` is unknown.

    >>> group_advantages([1, -1, -1, 1]).round(6).tolist()
    [0.866025, -0.866025, -0.866025, 0.866025]
    >>> group_advantages([3, 1], scale="none").tolist()
    [1.0, -1.0]
    """
    check_mode(scale, AdvantageScale, "advantage scale")
    scores = finite_vector(rewards, "rewards")
    if scores.size == 0:
        return scores
    single = scores.size == 1
    if not single and _all_equal(scores):
        return np.zeros_like(scores)
    centred = scores if single else scores - scores.mean()
    if scale == "none":
        return centred.copy()
    deviation = 1.0 if single else float(scores.std(ddof=ddof))
    return centred / (deviation + eps)


def rloo_advantages(rewards: ArrayLike) -> FloatArray:
    """Leave-one-out advantages: `A_i = R_i - sum_{j != i} R_j / (G - 1)`.

    RLOO, Ahmadian et al. 2024 (arXiv 2402.14740), after Kool et al. 2019. A group of one has nobody
    to be compared with: its baseline is 0. Equal rewards give exactly 0.

    Args:
        rewards: float[G], one score per trajectory.

    Returns:
        float64[G].

    Raises:
        ValueError: a reward is NaN or infinite.

    >>> rloo_advantages([1, 0, 0]).tolist()
    [1.0, -0.5, -0.5]
    """
    scores = finite_vector(rewards, "rewards")
    if scores.size < 2:
        return scores.copy()
    if _all_equal(scores):
        return np.zeros_like(scores)
    advantages: FloatArray = (scores - scores.mean()) * (scores.size / (scores.size - 1))
    return advantages


def whiten(values: ArrayLike, weights: ArrayLike | None = None, *, eps: float = 1e-8) -> FloatArray:
    """Shift and scale to mean 0 and variance 1: `(x - mean) / sqrt(var + eps)`.

    REINFORCE++ (arXiv 2501.03262) and PPO whiten advantages over every token of the batch. `weights` count
    how often a value occurs, so one number per trajectory with its token count as weight gives the same
    as the expanded array; a boolean mask is the special case 0/1. The variance has Bessel's correction,
    `sum(w (x - mean)^2) / (sum(w) - 1)`.

    Args:
        values: float[N].
        weights: int or bool[N], how often each value occurs; None is once each.
        eps: added to the variance.

    Returns:
        float64[N]; 0 where the weight is 0, and 0 everywhere when the weighted values are all equal
        (one value alone included).

    Raises:
        ValueError: a value is not finite, a weight is no count, or the shapes differ.

    >>> whiten([1.0, 2.0, 3.0]).round(4).tolist()
    [-1.0, 0.0, 1.0]
    >>> whiten([1.0, 2.0, 99.0], [True, True, False]).round(4).tolist()
    [-0.7071, 0.7071, 0.0]
    """
    array = finite_vector(values, "values")
    counts = np.ones_like(array) if weights is None else finite_vector(weights, "weights")
    if counts.shape != array.shape:
        raise ValueError(f"weights have shape {counts.shape}, values {array.shape}; they must agree")
    if np.any((counts < 0) | (counts != np.floor(counts))):
        raise ValueError("weights count occurrences; they must be whole numbers, not negative")
    used = counts > 0
    result = np.zeros_like(array)
    if not used.any() or _all_equal(array[used]):
        return result
    total = counts.sum()
    centred = array[used] - (array[used] @ counts[used]) / total
    variance = (centred**2 @ counts[used]) / (total - 1)
    result[used] = centred / np.sqrt(variance + eps)
    return result


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of `k` samples is right, unbiased: `1 - C(n-c, k) / C(n, k)`.

    Chen et al. 2021 (arXiv 2107.03374) equation 1. Resampling with replacement, which some trainers
    report as best@k, is biased low: with n = k = 32 and one right answer it gives 0.64 instead of 1.

    Args:
        n: samples drawn for the task.
        c: how many of them are right.
        k: samples the user would draw, at most `n`.

    Returns:
        A probability in [0, 1].

    Raises:
        ValueError: not `0 <= c <= n`, or not `1 <= k <= n`.

    >>> pass_at_k(n=4, c=1, k=2)
    0.5
    """
    if not 0 <= c <= n:
        raise ValueError(f"c={c} right answers out of n={n} samples; c must be in [0, n]")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} needs 1 <= k <= n, and there are n={n} samples; draw more or lower k")
    return 1.0 - comb(n - c, k) / comb(n, k)
