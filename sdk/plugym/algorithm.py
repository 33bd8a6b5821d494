"""Algorithms: from scored groups to advantages, from a flat batch of tokens to a loss.

The contract follows the data: `shape` (reward shaping within a group) -> `keep` (dynamic sampling) -> `advantages`
(sees the whole batch) -> `loss` (differentiable, on a `TokenBatch`). `collate` is the only way from trajectories to a
`TokenBatch`; its token order is trajectories, then streams, then trained positions ascending. In aggregation and
ratios 'sequence' always means trajectory.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from plugym.trajectory import FloatArray, IntArray, ScoredGroup, Trajectory

if TYPE_CHECKING:
    from torch import Tensor


class Need(StrEnum):
    """What an algorithm asks the runner to provide."""

    REF_LOGPROBS = "ref_logprobs"
    """Log-probs under the frozen starting policy, in `Aux` and `TokenBatch.ref_logp`."""
    VALUES = "values"
    """A value head; values in `Aux` and `TokenBatch`, saved with the checkpoint."""
    ANCHORS = "anchors"
    """Turns whose environment names the state (`info["anchor"]`)."""
    STEP_SCORES = "step_scores"
    """A reward with one number per turn (`Score.steps`)."""
    ENTROPY = "entropy"
    """Differentiable entropy of each trained token in `TokenBatch.entropy`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The run's limits in tokens and turns, as reward shaping needs them."""

    max_response_tokens: int
    max_turn_tokens: int
    max_turns: int
    max_context: int | None = None


@dataclass(frozen=True, slots=True)
class Advantage:
    """Advantages of one trajectory: one float32[T] per stream, aligned to its tokens, 0 where not trained.

    `returns` has the same layout where the algorithm trains values.
    """

    trajectory_id: str
    streams: tuple[FloatArray, ...]
    returns: tuple[FloatArray, ...] | None = None

    @property
    def is_zero(self) -> bool:
        return all(not np.any(stream) for stream in self.streams)


PerStream = Mapping[str, tuple[FloatArray, ...]]
"""Trajectory id -> one float32[T] per stream, aligned to the stream's tokens."""


@dataclass(frozen=True, slots=True)
class Aux:
    """What the learner computed for a batch beforehand; empty where nobody needed it."""

    old_logprobs: PerStream = field(default_factory=dict)
    ref_logprobs: PerStream = field(default_factory=dict)
    values: PerStream = field(default_factory=dict)


@dataclass(slots=True)
class TokenBatch:
    """The trained tokens of a micro-batch, flat: every tensor is float32[T] unless said otherwise.

    logp: log-probs now (with gradient). old_logp: before the update. rollout_logp: as sampled. traj_index, turn_index:
    int64[T]; traj_index counts trajectories of this micro-batch. traj_tokens: int64[n_traj]. total_tokens and
    total_trajs count the whole mini-batch, so that micro-batch losses add up to the mini-batch loss.
    """

    logp: Tensor
    old_logp: Tensor
    rollout_logp: Tensor
    advantages: Tensor
    traj_index: Tensor
    turn_index: Tensor
    traj_tokens: Tensor
    total_tokens: int
    total_trajs: int
    ref_logp: Tensor | None = None
    entropy: Tensor | None = None
    values: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None


@dataclass(slots=True)
class LossOutput:
    """A scalar loss with gradient, and metrics. Metrics of micro-batches are added up, so report sums over tokens
    divided by `total_tokens`, not micro-batch means."""

    loss: Tensor
    metrics: dict[str, float] = field(default_factory=dict)


class AlgorithmConfig(BaseModel, extra="forbid"):
    """Settings of an algorithm that has none of its own."""


class Algorithm(ABC):
    """Constructed as `Algorithm(config)`. Stateless but for `state_dict`."""

    Config: ClassVar[type[BaseModel]] = AlgorithmConfig
    needs: frozenset[Need] = frozenset()
    """What the runner must provide; an instance may set its own, depending on its settings."""
    trains_singletons: ClassVar[bool] = False
    """Whether a group of one can have a non-zero advantage (a running baseline, values)."""

    resamples: bool = False
    """Whether groups that `keep` refuses are replaced by further rollouts (dynamic sampling)."""

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    def shape(self, group: ScoredGroup, limits: Limits) -> ScoredGroup:
        """Change values within a group (overlong penalty, tool terms). The default changes nothing."""
        return group

    def keep(self, group: ScoredGroup) -> bool:
        """Whether to train on the group (dynamic sampling). The default keeps what has a score."""
        return bool(group.counted())

    @abstractmethod
    def advantages(self, batch: Sequence[ScoredGroup], aux: Aux) -> list[Advantage]:
        """One `Advantage` per counted trajectory of the batch, in order. Infra-failed ones have none."""

    @abstractmethod
    def loss(self, batch: TokenBatch) -> LossOutput:
        """The loss of a micro-batch, already divided by whole-mini-batch counts."""

    @property
    def zero_advantage_is_zero_loss(self) -> bool:
        """True when a trajectory of zero advantage adds nothing to the loss, so its forward pass may be skipped."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """JSON-able state such as running baselines."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""


def counted_trajectories(batch: Iterable[ScoredGroup]) -> list[Trajectory]:
    """The trajectories that are trained on, in batch order: those with a score that did not infra-fail."""
    return [trajectory for group in batch for _, trajectory, _ in group.counted()]


def spread(trajectory: Trajectory, value: float) -> Advantage:
    """The same number on every trained token of the trajectory.

    >>> from plugym.trajectory import stream_of
    >>> t = Trajectory("t", None, "g", streams=(stream_of([([1], [2, 3], [-1.0, -1.0])]),))
    >>> spread(t, 0.5).streams[0].tolist()
    [0.0, 0.5, 0.5]
    """
    return Advantage(
        trajectory.id, tuple((stream.loss_mask * value).astype(np.float32) for stream in trajectory.streams)
    )


def spread_turns(trajectory: Trajectory, values: Sequence[float]) -> Advantage:
    """One number per turn, on the trained tokens of that turn in whatever stream they lie.

    Raises `ValueError` when the count differs from the number of turns.
    """
    if len(values) != len(trajectory.turns):
        raise ValueError(f"{len(values)} values for {len(trajectory.turns)} turns of {trajectory.id}")
    table = np.asarray([*values, 0.0], dtype=np.float32)
    return Advantage(
        trajectory.id,
        tuple(np.where(s.loss_mask, table[s.turn_ids], np.float32(0.0)).astype(np.float32) for s in trajectory.streams),
    )


def flatten(trajectories: Sequence[Trajectory], arrays: Sequence[Sequence[FloatArray]]) -> FloatArray:
    """Per-stream arrays to the flat order of a `TokenBatch`: float32[total trained tokens]."""
    picked = [
        np.asarray(array, dtype=np.float32)[stream.positions]
        for trajectory, streams in zip(trajectories, arrays, strict=True)
        for stream, array in zip(trajectory.streams, streams, strict=True)
    ]
    return np.concatenate(picked) if picked else np.zeros(0, dtype=np.float32)


def unflatten(trajectories: Sequence[Trajectory], flat: FloatArray) -> list[tuple[FloatArray, ...]]:
    """The inverse of `flatten`: per-stream arrays aligned to tokens, 0 where not trained.

    Raises `ValueError` when `flat` has not one number per trained token.
    """
    trained = sum(trajectory.trained_tokens for trajectory in trajectories)
    if len(flat) != trained:
        raise ValueError(f"{len(flat)} numbers for {trained} trained tokens")
    out: list[tuple[FloatArray, ...]] = []
    start = 0
    for trajectory in trajectories:
        arrays = []
        for stream in trajectory.streams:
            array = np.zeros(len(stream), dtype=np.float32)
            n = len(stream.positions)
            array[stream.positions] = flat[start : start + n]
            start += n
            arrays.append(array)
        out.append(tuple(arrays))
    return out


def micro_batches(trajectories: Sequence[Trajectory], max_tokens: int) -> list[list[int]]:
    """Indices per micro-batch of at most `max_tokens` context tokens; a trajectory is never split.

    A single trajectory longer than the limit gets a micro-batch of its own. Longest first, so padding is small, and
    groups stay together, because their members share a prompt that need be computed only once.
    """
    sizes = [sum(len(stream) for stream in trajectory.streams) for trajectory in trajectories]
    longest: dict[str, int] = {}
    for trajectory, size in zip(trajectories, sizes, strict=True):
        longest[trajectory.group_id] = max(size, longest.get(trajectory.group_id, 0))

    def order(index: int) -> tuple[int, str, int, int]:
        group = trajectories[index].group_id
        return -longest[group], group, -sizes[index], index

    batches: list[list[int]] = []
    room = 0
    for index in sorted(range(len(sizes)), key=order):
        if not batches or sizes[index] > room:
            batches.append([])
            room = max_tokens
        batches[-1].append(index)
        room -= sizes[index]
    return batches


def _index_arrays(trajectories: Sequence[Trajectory]) -> tuple[IntArray, IntArray, IntArray]:
    """traj_index[T], turn_index[T] and traj_tokens[n_traj] in the flat order."""
    turn_parts = [stream.turn_ids[stream.positions] for t in trajectories for stream in t.streams]
    counts = np.array([trajectory.trained_tokens for trajectory in trajectories], dtype=np.int64)
    turn_index = np.concatenate(turn_parts) if turn_parts else np.zeros(0, dtype=np.int64)
    return np.repeat(np.arange(len(trajectories)), counts), turn_index, counts


def collate(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[Advantage],
    *,
    logp: Tensor,
    aux: Aux | None = None,
    entropy: Tensor | None = None,
    values: Tensor | None = None,
    total_tokens: int | None = None,
    total_trajs: int | None = None,
) -> TokenBatch:
    """Trajectories, their advantages and freshly computed log-probs (flat, with gradient) to a `TokenBatch`.

    Old log-probs are taken from `aux`; where it has none, the update is exactly on-policy and they are `logp` itself,
    detached. Raises `ValueError` on a trajectory with a stream that cannot be trained on, and on advantages that are
    not those of the trajectories, in their order.
    """
    import torch

    if [trajectory.id for trajectory in trajectories] != [advantage.trajectory_id for advantage in advantages]:
        raise ValueError("advantages are not one for each trajectory in the same order")
    for trajectory in trajectories:
        if not all(stream.trainable for stream in trajectory.streams):
            raise ValueError(f"trajectory {trajectory.id} has a stream without token ids: it cannot be trained on")
    aux = aux or Aux()

    def flat(table: PerStream) -> Tensor | None:
        if not table:
            return None
        return torch.from_numpy(flatten(trajectories, [table[t.id] for t in trajectories])).to(logp.device)

    adv = torch.from_numpy(flatten(trajectories, [a.streams for a in advantages])).to(logp.device)
    if advantages and all(a.returns is not None for a in advantages):
        arrays = [a.returns for a in advantages if a.returns is not None]
        returns = torch.from_numpy(flatten(trajectories, arrays)).to(logp.device)
    else:
        returns = None
    rollout = flatten(trajectories, [[s.logprobs for s in t.streams] for t in trajectories])
    traj_index, turn_index, counts = (torch.from_numpy(a).to(logp.device) for a in _index_arrays(trajectories))
    old = flat(aux.old_logprobs)
    return TokenBatch(
        logp=logp,
        old_logp=logp.detach() if old is None else old,
        rollout_logp=torch.from_numpy(rollout).to(logp.device),
        advantages=adv,
        traj_index=traj_index,
        turn_index=turn_index,
        traj_tokens=counts,
        total_tokens=int(counts.sum()) if total_tokens is None else total_tokens,
        total_trajs=len(trajectories) if total_trajs is None else total_trajs,
        ref_logp=flat(aux.ref_logprobs),
        entropy=entropy,
        values=values,
        old_values=flat(aux.values),
        returns=returns,
    )
