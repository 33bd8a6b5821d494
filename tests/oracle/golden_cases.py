"""The losses that are compared with other implementations, and ours for each of them.

A `Case` names a loss the way `plugym.functional` composes it; `trl_oracle.py` and `verl_oracle.py` say what
their library calls the same thing. `Inputs` is one padded batch, as those libraries want it; `our_loss`
flattens it to the trained tokens. Nothing here imports an oracle.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from plugym.functional import (
    AggregationMode,
    KLKind,
    aggregate,
    cispo_loss,
    clipped_surrogate,
    gspo_ratio,
    kl_penalty,
    log_ratio,
    sequence_log_ratio,
)

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
MAX_LENGTH = 16
"""Constant length of the Dr. GRPO normalisation; longer than the padded width, so that the two differ."""


@dataclass(frozen=True)
class Case:
    """One loss. `loss` and `ratio` pick the surrogate, the rest are its settings."""

    name: str
    mode: AggregationMode
    loss: Literal["clipped", "cispo"] = "clipped"
    ratio: Literal["token", "sequence", "gspo"] = "token"
    beta: float = 0.0
    kl: KLKind = "k3"
    kl_times_ratio: bool = False
    clip_low: float | None = CLIP_LOW
    clip_high: float = CLIP_HIGH
    dual_clip: float | None = None


@dataclass(frozen=True)
class Inputs:
    """A padded batch of B trajectories by T positions; `mask` is 1 on trained tokens."""

    logp: list[list[float]]
    old_logp: list[list[float]]
    ref_logp: list[list[float]]
    mask: list[list[int]]
    advantages: list[float]

    def tensor(self, field: str, dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor(getattr(self, field), dtype=dtype)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def make_inputs(seed: int, width: int = 8) -> Inputs:
    """Random log-probs with ratios on both sides of every clip.

    The trajectories: one full, one with observation tokens inside, one with a single trained token, one with
    none, one full whose advantage is negative and one of whose ratios is e^3, beyond any dual clip.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = 5

    def noise() -> Tensor:
        return torch.randn(rows, width, generator=draw, dtype=torch.float64)

    logp = -noise().abs() - 0.05
    old_logp = logp - 0.35 * noise()
    old_logp[4, 2] = logp[4, 2] - 3.0
    ref_logp = logp - 0.5 * noise()
    mask = torch.ones(rows, width, dtype=torch.long)
    mask[1, 3:6] = 0
    mask[2, 1:] = 0
    mask[3] = 0
    advantages = torch.tensor([1.2, -0.7, 0.9, 1.0, -1.4], dtype=torch.float64)
    # Rounded to float32, so that both precisions start from the same numbers.
    logp, old_logp, ref_logp = (x.float().double() for x in (logp, old_logp, ref_logp))
    return Inputs(logp.tolist(), old_logp.tolist(), ref_logp.tolist(), mask.tolist(), advantages.tolist())


def _ratio(case: Case, logp: Tensor, old_logp: Tensor, index: Tensor, tokens: Tensor) -> Tensor:
    if case.ratio == "token":
        return log_ratio(logp, old_logp).exp()
    if case.ratio == "sequence":
        return sequence_log_ratio(logp, old_logp, index, tokens).exp()
    return gspo_ratio(logp, old_logp, index, tokens)


def our_loss(
    case: Case, inputs: Inputs, dtype: torch.dtype = torch.float64, *, count_empty: bool = True
) -> tuple[float, list[list[float]]]:
    """Loss and its gradient by `logp`, float[B][T] (0 on untrained positions), with plugym.functional.

    `count_empty`: whether a trajectory without trained tokens counts in means over trajectories.
    """
    mask = inputs.tensor("mask").bool()
    leaf = inputs.tensor("logp", dtype).requires_grad_()
    logp, old_logp, ref_logp = leaf[mask], *(inputs.tensor(f, dtype)[mask] for f in ("old_logp", "ref_logp"))
    index, tokens = mask.nonzero()[:, 0], mask.sum(1)
    advantages = inputs.tensor("advantages", dtype)[index]

    ratio = _ratio(case, logp, old_logp, index, tokens)
    if case.loss == "cispo":
        per_token = cispo_loss(logp, ratio, advantages, case.clip_high, case.clip_low)
    else:
        assert case.clip_low is not None
        per_token = clipped_surrogate(ratio, advantages, case.clip_low, case.clip_high, case.dual_clip)
    if case.beta:
        kl = kl_penalty(logp, ref_logp, case.kl)
        per_token = per_token + case.beta * (ratio * kl if case.kl_times_ratio else kl)
    trajs = len(tokens) if count_empty else int((tokens > 0).sum())
    loss = aggregate(per_token, case.mode, index, tokens, int(tokens.sum()), trajs, norm_length=MAX_LENGTH)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad.tolist()


def difference(ours: tuple[float, list[list[float]]], theirs: tuple[float, list[list[float]]]) -> float:
    """Largest absolute difference of loss or gradient."""
    gradient = (torch.tensor(ours[1]).double() - torch.tensor(theirs[1]).double()).abs().max()
    return max(abs(ours[0] - theirs[0]), gradient.item())
