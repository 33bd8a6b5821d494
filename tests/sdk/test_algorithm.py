"""From trajectories to flat batches: order, spreading, micro-batches that never split a trajectory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from builders import trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.algorithm import (
    Advantage,
    Algorithm,
    AlgorithmConfig,
    Aux,
    LossOutput,
    TokenBatch,
    collate,
    flatten,
    micro_batches,
    spread,
    spread_turns,
    unflatten,
)
from plugym.trajectory import Trajectory, stream_of

episodes = st.lists(
    st.lists(  # streams
        st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=3), max_size=3
    ),
    max_size=4,
)


def build(shape: list[list[list[tuple[int, int]]]]) -> list[Trajectory]:
    return [
        trajectory(
            f"t{n}",
            tokens=(1,) * 3,
            streams=tuple(stream_of([([1] * p, [2] * s, [-0.25] * s) for p, s in turns]) for turns in streams),
        )
        for n, streams in enumerate(shape)
    ]


@settings(deadline=None)
@given(episodes)
def test_flatten_and_unflatten_are_inverse(shape: list[list[list[tuple[int, int]]]]) -> None:
    trajectories = build(shape)
    total = sum(t.trained_tokens for t in trajectories)
    flat = np.arange(1, total + 1, dtype=np.float32)
    arrays = unflatten(trajectories, flat)
    assert np.array_equal(flatten(trajectories, arrays), flat)
    for t, streams in zip(trajectories, arrays, strict=True):
        for stream, array in zip(t.streams, streams, strict=True):
            assert array.shape == stream.ids.shape
            assert (array[~stream.loss_mask] == 0).all()
            assert array.dtype == np.float32
    with pytest.raises(ValueError, match=f"{total + 1} numbers for {total} trained tokens"):
        unflatten(trajectories, np.zeros(total + 1, np.float32))


@settings(deadline=None)
@given(episodes)
def test_collate_keeps_the_order_of_flatten(shape: list[list[list[tuple[int, int]]]]) -> None:
    trajectories = build(shape)
    advantages = [spread(t, float(n + 1)) for n, t in enumerate(trajectories)]
    total = sum(t.trained_tokens for t in trajectories)
    logp = torch.zeros(total, requires_grad=True)
    batch = collate(trajectories, advantages, logp=logp)
    assert batch.traj_tokens.tolist() == [t.trained_tokens for t in trajectories]
    assert batch.advantages.tolist() == [float(i + 1) for i in batch.traj_index.tolist()]
    assert batch.rollout_logp.tolist() == [-0.25] * total
    assert not batch.old_logp.requires_grad
    assert batch.ref_logp is None
    assert (batch.total_tokens, batch.total_trajs) == (total, len(trajectories))
    shapes = {t.shape for t in (batch.logp, batch.old_logp, batch.traj_index, batch.turn_index, batch.advantages)}
    assert shapes == {(total,)}


@given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 30))
def test_micro_batches_hold_every_trajectory_once_and_whole(sizes: list[int], limit: int) -> None:
    trajectories = [
        trajectory(str(i), streams=(stream_of([([1] * n, [], [])]), stream_of([([1], [2], [0.0])])))
        for i, n in enumerate(sizes)
    ]
    batches = micro_batches(trajectories, limit)
    assert sorted(i for batch in batches for i in batch) == list(range(len(sizes)))
    for batch in batches:
        tokens = sum(sizes[i] + 2 for i in batch)
        assert tokens <= limit or len(batch) == 1
    assert all(batches)


def test_spreading_per_trajectory_and_per_turn() -> None:
    episode = trajectory("t", tokens=(2, 1))
    assert spread(episode, -1.5).streams[0].tolist() == [0, 0, -1.5, -1.5, 0, 0, -1.5]
    assert spread_turns(episode, [1.0, 2.0]).streams[0].tolist() == [0, 0, 1, 1, 0, 0, 2]
    with pytest.raises(ValueError, match="3 values for 2 turns of t"):
        spread_turns(episode, [1, 2, 3])


def test_a_turns_value_reaches_its_tokens_in_whatever_stream_they_lie() -> None:
    streams = (stream_of([([1], [2], [0.0])]), stream_of([([], [], []), ([1], [2, 2], [0.0, 0.0])]))
    episode = trajectory("t", tokens=(1, 1), streams=streams)
    assert [s.tolist() for s in spread_turns(episode, [5, 7]).streams] == [[0, 5], [0, 7, 7]]


def test_a_zero_advantage_is_recognised() -> None:
    episode = trajectory("t")
    assert spread(episode, 0.0).is_zero
    assert not spread(episode, 1e-9).is_zero
    assert Advantage("t", ()).is_zero


def test_what_cannot_be_trained_on_is_refused() -> None:
    text_only = trajectory("t9", streams=(stream_of([], trainable=False),))
    with pytest.raises(ValueError, match="trajectory t9 has a stream without token ids"):
        collate([text_only], [Advantage("t9", (np.zeros(0, np.float32),))], logp=torch.zeros(0))


def test_advantages_of_other_trajectories_are_refused() -> None:
    a, b = trajectory("a"), trajectory("b")
    for wrong in ([spread(b, 1), spread(a, 1)], [spread(a, 1)]):
        with pytest.raises(ValueError, match="not one for each trajectory in the same order"):
            collate([a, b], wrong, logp=torch.zeros(4))


def test_aux_is_looked_up_by_trajectory() -> None:
    a, b = trajectory("a"), trajectory("b")
    table = {t.id: tuple(s.loss_mask * np.float32(v) for s in t.streams) for t, v in ((a, -1.0), (b, -2.0))}
    aux = Aux(old_logprobs=table, ref_logprobs=table, values=table)
    batch = collate([b, a], [spread(b, 1), spread(a, 1)], logp=torch.zeros(4), aux=aux, total_tokens=9, total_trajs=5)
    for found in (batch.old_logp, batch.ref_logp, batch.old_values):
        assert found is not None
        assert found.tolist() == [-2, -2, -1, -1]
    assert (batch.total_tokens, batch.total_trajs) == (9, 5)


def test_an_algorithms_defaults_change_nothing() -> None:
    class Plain(Algorithm):
        def advantages(self, batch: object, aux: Aux) -> list[Advantage]:
            return []

        def loss(self, batch: TokenBatch) -> LossOutput:
            raise NotImplementedError

    algorithm = Plain()
    assert isinstance(algorithm.config, AlgorithmConfig)
    assert algorithm.state_dict() == {}
    assert not algorithm.zero_advantage_is_zero_loss
    assert not algorithm.needs
