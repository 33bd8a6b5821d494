"""What the tests of algorithms share: groups made by hand or at random, and a loss written as plain loops.

`naive_loss` is the independent implementation: it walks over trajectories and tokens one by one, in Python numbers
and zero-dimensional tensors, and uses nothing of `plugym.functional`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plugym.algorithm import Advantage, Algorithm, Aux, Limits, TokenBatch, collate, counted_trajectories, unflatten
from plugym.errors import Failure, InfraKind
from plugym.message import Action
from plugym.reward import Score
from plugym.trajectory import Group, ScoredGroup, StopReason, TokenStream, Trajectory, Turn, stream_of
from plugym_algos.grpo import GRPOConfig

LIMITS = Limits(max_response_tokens=512, max_turn_tokens=512, max_turns=8)


def trajectory(
    name: str, streams: Sequence[Sequence[tuple[int, int]]] = (((2, 3),),), *, calls: int = 0, infra: bool = False
) -> Trajectory:
    """A trajectory whose streams are lists of (new prompt tokens, sampled tokens) per turn."""
    return Trajectory(
        name,
        None,
        "g",
        turns=(Turn((), Action(), executed_calls=calls),),
        streams=tuple(
            stream_of([([7] * prompt, [8] * sampled, [-1.0] * sampled) for prompt, sampled in turns])
            for turns in streams
        ),
        stop_reason=StopReason.INFRA if infra else StopReason.ENV_DONE,
        failure=Failure(InfraKind.ENV, "lost") if infra else None,
    )


def verdict(correct: bool) -> Score:
    """As the verifier gives it."""
    return Score(float(correct), correct=correct)


def scored(trajectories: Sequence[Trajectory], scores: Sequence[Score]) -> ScoredGroup:
    return ScoredGroup(Group("g", None, tuple(trajectories)), tuple(scores))


def scalars(algo: Algorithm, group: ScoredGroup) -> list[float]:
    """The advantage of each counted trajectory: one number, which all its trained tokens must share."""
    numbers = []
    for own, advantage in zip(counted_trajectories([group]), algo.advantages([group], Aux()), strict=True):
        assert advantage.trajectory_id == own.id
        trained = np.concatenate([a[s.loss_mask] for a, s in zip(advantage.streams, own.streams, strict=True)])
        assert len(trained) == own.trained_tokens
        assert len(set(trained.tolist())) == 1
        assert all(not a[~s.loss_mask].any() for a, s in zip(advantage.streams, own.streams, strict=True))
        numbers.append(float(trained[0]))
    return numbers


@dataclass(frozen=True)
class Sample:
    """Trajectories with everything that a loss may look at; flat arrays are in the order of a `TokenBatch`."""

    trajectories: list[Trajectory]
    advantages: list[Advantage]
    aux: Aux
    logp: Tensor
    entropy: Tensor

    def batch(self, which: Sequence[int] | None = None, logp: Tensor | None = None) -> TokenBatch:
        """The micro-batch of some trajectories (all by default), with the counts of the whole mini-batch."""
        chosen = range(len(self.trajectories)) if which is None else which
        counts = [t.trained_tokens for t in self.trajectories]
        starts = np.concatenate([[0], np.cumsum(counts)])
        tokens = np.concatenate([np.arange(starts[i], starts[i + 1]) for i in chosen])
        return collate(
            [self.trajectories[i] for i in chosen],
            [self.advantages[i] for i in chosen],
            logp=(self.logp if logp is None else logp)[torch.from_numpy(tokens)],
            aux=self.aux,
            entropy=self.entropy[torch.from_numpy(tokens)],
            total_tokens=sum(counts),
            total_trajs=len(counts),
        )


def random_sample(seed: int, *, spread: float = 0.5, values: Sequence[float] = (1.0, 0.0, 0.5, -1.0, 0.2)) -> Sample:
    """Five trajectories of one or two streams and one to four turns, with ratios on both sides of every bound."""
    draw = np.random.default_rng(seed)
    shapes = [
        [[(int(draw.integers(1, 4)), int(draw.integers(1, 5))) for _ in range(draw.integers(1, 3))] for _ in range(n)]
        for n in (1, 2, 1, 2, 1)
    ]
    trajectories = [trajectory(f"t{i}", shape) for i, shape in enumerate(shapes)]
    group = scored(trajectories, [Score(value) for value in values])
    means = np.asarray(values) - np.mean(values)
    advantages = [
        Advantage(t.id, tuple((s.loss_mask * mean).astype(np.float32) for s in t.streams))
        for t, mean in zip(group.group.trajectories, means, strict=True)
    ]
    size = sum(t.trained_tokens for t in trajectories)
    logp = -draw.exponential(size=size).astype(np.float32)

    def near(scale: float) -> dict[str, tuple[Any, ...]]:
        noise = (logp + scale * draw.normal(size=size)).astype(np.float32)
        return {t.id: arrays for t, arrays in zip(trajectories, unflatten(trajectories, noise), strict=True)}

    aux = Aux(old_logprobs=near(spread), ref_logprobs=near(0.3))
    sampled = near(0.5)
    trajectories = [_with_logprobs(t, sampled[t.id]) for t in trajectories]
    entropy = torch.from_numpy(draw.exponential(size=size).astype(np.float32)).requires_grad_()
    return Sample(trajectories, advantages, aux, torch.from_numpy(logp).requires_grad_(), entropy)


def _with_logprobs(own: Trajectory, arrays: Sequence[Any]) -> Trajectory:
    streams = tuple(
        TokenStream(s.ids, s.loss_mask, array, s.turn_ids, s.policy_versions)
        for s, array in zip(own.streams, arrays, strict=True)
    )
    return Trajectory(own.id, own.task, own.group_id, own.turns, streams)


def naive_loss(config: GRPOConfig, sample: Sample) -> Tensor:
    """The loss of the whole mini-batch, token by token."""
    position = 0
    sequences: list[list[Tensor]] = []
    for own, advantage in zip(sample.trajectories, sample.advantages, strict=True):
        losses: list[Tensor] = []
        for number, stream in enumerate(own.streams):
            for t in range(len(stream)):
                if not stream.loss_mask[t]:
                    continue
                old = float(sample.aux.old_logprobs[own.id][number][t])
                ref = float(sample.aux.ref_logprobs[own.id][number][t])
                gain = float(advantage.streams[number][t])
                losses.append(_naive_token(config, sample, position, old, ref, float(stream.logprobs[t]), gain))
                position += 1
        sequences.append(losses)
    if config.aggregation == "token-mean":
        return torch.stack([loss for losses in sequences for loss in losses]).mean()
    per_sequence = []
    for losses in sequences:
        total = torch.stack(losses).sum()
        if config.aggregation == "seq-mean-token-mean":
            total = total / len(losses)
        elif config.aggregation == "seq-mean-token-sum-norm":
            assert config.norm_length is not None
            total = total / config.norm_length
        per_sequence.append(total)
    return torch.stack(per_sequence).mean()


def _naive_token(
    config: GRPOConfig, sample: Sample, position: int, old: float, ref: float, sampled: float, gain: float
) -> Tensor:
    logp = sample.logp[position]
    ratio = (logp - old).exp()
    plain, clipped = -gain * ratio, -gain * ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    loss = plain if plain > clipped else clipped
    if config.dual_clip is not None and gain < 0 and loss > -gain * config.dual_clip:
        loss = torch.tensor(-gain * config.dual_clip)
    if config.correction == "tis":
        loss = loss * min(float(np.exp(old - sampled)), config.tis_cap)
    elif config.correction == "icepop":
        weight = float(np.exp(old - sampled))
        loss = loss * (weight if config.icepop_low <= weight <= config.icepop_high else 0.0)
    difference = logp - ref
    kl = {"k2": difference**2 / 2, "k3": (-difference).exp() - 1 + difference}[config.kl_kind]
    return loss + config.kl_coef * kl - config.entropy_coef * sample.entropy[position]
