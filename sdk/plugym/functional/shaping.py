"""Reward shaping: what turns a verdict, lengths, tool calls and votes into the numbers an algorithm uses.

Plain Python and numpy, no torch. These are the reward terms of published recipes, each a pure function
of counts that the trajectory carries. Who is right is decided by a reward provider, not here; comparing
trajectories with one another is `statistics.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .statistics import FloatArray

Votes = Sequence[Sequence[float | None]]
"""Per step, the m samples of a judge or reward model; None is a sample that gave no verdict."""


def overlong_penalty(length: int, max_length: int, cache_length: int, factor: float = 1.0) -> float:
    """Soft penalty for answers that come close to the length limit, in [-factor, 0].

    `factor * clamp(((Lmax - Lc) - L) / Lc, -1, 0)`: DAPO (arXiv 2503.14476) equation 13, the R of GRPO-TCR
    (arXiv 2510.11701) equation 9. Which tokens count towards `length` is the caller's choice.

    Args:
        length: tokens of the trajectory, L.
        max_length: the limit, Lmax.
        cache_length: width of the zone below the limit in which the penalty grows, Lc.
        factor: the penalty at and beyond the limit.

    Returns:
        0 outside the zone, falling linearly to `-factor` at the limit.

    Raises:
        ValueError: `length` or `factor` is negative, or not `0 < cache_length <= max_length`.

    >>> overlong_penalty(17408, max_length=20480, cache_length=4096)
    -0.25
    """
    if not 0 < cache_length <= max_length:
        raise ValueError(f"cache_length={cache_length} must be above 0 and at most max_length={max_length}")
    if length < 0 or factor < 0:
        raise ValueError(f"length={length} and factor={factor} must not be negative")
    slack = (max_length - cache_length - length) / cache_length
    return factor * min(max(slack, -1.0), 0.0)


def tool_shaped_reward(correct: bool, executed_calls: int, *, bonus: float = 0.1, cap: float = -0.6) -> float:
    """Outcome reward that pays a wrong answer a little for having used its tools.

    Correct: 1. Wrong: `min(cap, -1 + bonus * n)`, n the tool calls that were executed: the tool term of
    GRPO-TCR (arXiv 2510.11701) equation 8, in the form its authors released (no bonus for right answers).

    Args:
        correct: the verdict.
        executed_calls: tool calls of the trajectory that really ran, n.
        bonus: reward per call.
        cap: the most a wrong answer can get.

    Returns:
        1.0, or a number in [-1, cap].

    Raises:
        ValueError: `executed_calls` is negative.

    >>> [round(tool_shaped_reward(False, n), 1) for n in (0, 1, 5)], tool_shaped_reward(True, 5)
    ([-1.0, -0.9, -0.6], 1.0)
    """
    if executed_calls < 0:
        raise ValueError(f"executed_calls={executed_calls} must not be negative")
    return 1.0 if correct else min(cap, -1.0 + bonus * executed_calls)


def step_rewards(outcome: float, votes: Votes, lam: float = 1.0) -> FloatArray:
    """RLAnything's integrated reward of each step: `R_i = O + (lam / m) * sum_j S_ij`.

    RLAnything (arXiv 2602.02488), the policy's reward. A sample without a verdict counts as 0 and stays
    in m; a step nobody voted on has `R_i = O`.

    Args:
        outcome: O, +1 for a solved episode and -1 for a failed one.
        votes: S, per step the m samples in {+1, -1} or None.
        lam: weight of the step signal against the outcome.

    Returns:
        float64[steps].

    >>> step_rewards(1.0, [(1, 1, -1), (1, None, -1), ()]).round(6).tolist()
    [1.333333, 1.0, 1.0]
    """
    means = [sum(vote or 0.0 for vote in step) / max(len(step), 1) for step in votes]
    return outcome + lam * np.asarray(means, dtype=np.float64)


def vote_rewards(rewards: Sequence[float], votes: Votes, invalid: float = -2.0) -> list[FloatArray]:
    """RLAnything's reward of the reward model's own samples: `R_S_ij = R_i * S_ij`.

    RLAnything (arXiv 2602.02488), the consistency feedback: a vote earns by agreeing with the integrated
    reward of its step. A sample without a verdict earns `invalid`. Standardise each step's samples with
    `group_advantages(..., ddof=0, eps=0)`.

    Args:
        rewards: float[steps], from `step_rewards`.
        votes: the same votes as there.
        invalid: reward of a sample that gave no verdict.

    Returns:
        One float64[m_i] per step.

    Raises:
        ValueError: not one reward per step.

    >>> [step.tolist() for step in vote_rewards([1.0], [(1, None, -1)])]
    [[1.0, -2.0, -1.0]]
    """
    if len(rewards) != len(votes):
        raise ValueError(f"{len(rewards)} step rewards but votes on {len(votes)} steps; they must agree")
    return [
        np.asarray([invalid if vote is None else reward * vote for vote in step], dtype=np.float64)
        for reward, step in zip(rewards, votes, strict=True)
    ]
