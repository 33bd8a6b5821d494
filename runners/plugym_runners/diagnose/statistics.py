"""Robust statistics of short noisy series. numpy only; nothing here knows what a metric means."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]

_SIGMA_PER_MAD = 1.4826
"""Standard deviation of a normal distribution in units of its median absolute deviation."""


def theil_sen(x: Values, y: Values) -> float:
    """Slope: the median over all pairs (Sen 1968). A fifth of the points may be wild without moving it.

    >>> theil_sen(np.arange(5.0), np.array([0.0, 1, 2, 3, 100]))
    1.0
    """
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] != x[i]
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 0.0


def mann_kendall(y: Values) -> float:
    """Normal score of a monotone trend (Mann 1945, with the correction for ties): above 1.64 rises at the 5% level.

    >>> mann_kendall(np.arange(10.0)) > 3, mann_kendall(np.zeros(10))
    (True, 0.0)
    """
    n = len(y)
    i, j = np.triu_indices(n, 1)
    s = float(np.sign(y[j] - y[i]).sum())
    ties = np.unique(y, return_counts=True)[1].astype(np.float64)
    variance = (n * (n - 1) * (2 * n + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())) / 18
    return math.copysign(max(abs(s) - 1, 0.0), s) / math.sqrt(variance) if variance > 0 else 0.0


def rank_correlation(x: Values, y: Values) -> float:
    """Spearman's rho; 0 when one of the two is constant.

    >>> rank_correlation(np.array([1.0, 2, 3]), np.array([10.0, 100, 1000]))
    1.0
    """
    a, b = _ranks(x), _ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float((a * a).sum() * (b * b).sum()))
    return round(float((a * b).sum()) / scale, 12) if scale else 0.0


def _ranks(values: Values) -> Values:
    """Ranks from 0, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean_rank: Values = (ends - counts + ends - 1) / 2
    return mean_rank[inverse]


def running_median(values: Values, width: int) -> Values:
    """Median of the `width` values around each one (fewer at the ends): float64[n]."""
    half = width // 2
    return np.array([np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def robust_sigma(values: Values) -> float:
    """Standard deviation estimated from the median absolute deviation."""
    return _SIGMA_PER_MAD * float(np.median(np.abs(values - np.median(values))))
