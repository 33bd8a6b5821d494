"""PPO: an algorithm that needs values. Advantages and returns come from GAE over the trained tokens alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from builders import group, trajectory

from plugym.algorithm import (
    Advantage,
    Algorithm,
    Aux,
    LossOutput,
    Need,
    TokenBatch,
    collate,
    flatten,
    unflatten,
)
from plugym.functional import aggregate, clipped_surrogate, gae, log_ratio, value_loss
from plugym.reward import Score, reward
from plugym.scoring import score_group
from plugym.testing import FakeLearner
from plugym.trajectory import ScoredGroup, Trajectory

GAMMA, LAMBDA = 0.9, 0.8


class PPO(Algorithm):
    """Reward on the last token, GAE, clipped policy loss and clipped value loss."""

    needs = frozenset({Need.VALUES})
    trains_singletons = True

    def advantages(self, batch: Sequence[ScoredGroup], aux: Aux) -> list[Advantage]:
        return [self._advantage(trajectory, value, aux) for group in batch for _, trajectory, value in group.counted()]

    def _advantage(self, trajectory: Trajectory, value: float, aux: Aux) -> Advantage:
        values = flatten([trajectory], [aux.values[trajectory.id]])
        rewards = np.zeros(len(values))
        rewards[-1] = value
        advantages, returns = gae(rewards, values, GAMMA, LAMBDA)
        (spread_advantages,) = unflatten([trajectory], advantages.astype(np.float32))
        (spread_returns,) = unflatten([trajectory], returns.astype(np.float32))
        return Advantage(trajectory.id, spread_advantages, spread_returns)

    def loss(self, batch: TokenBatch) -> LossOutput:
        assert batch.values is not None
        assert batch.old_values is not None
        assert batch.returns is not None
        counts = (batch.traj_index, batch.traj_tokens, batch.total_tokens, batch.total_trajs)
        ratio = log_ratio(batch.logp, batch.old_logp).exp()
        policy = aggregate(clipped_surrogate(ratio, batch.advantages, 0.2, 0.2), "token-mean", *counts)
        critic = aggregate(value_loss(batch.values, batch.old_values, batch.returns, clip=0.2), "token-mean", *counts)
        return LossOutput(policy + 0.5 * critic, {"actor/loss": policy.item(), "critic/loss": critic.item()})


def scored() -> tuple[ScoredGroup, Aux]:
    """One episode of two turns: three sampled tokens, two observed ones before each turn; the last value of an
    observation token is a trap."""
    episode = trajectory("t0", tokens=(2, 1))
    values = (np.array([9, 9, 0.5, 0.25, 9, 9, 0.75], np.float32),)
    group_ = asyncio.run(score_group("one", reward(lambda trajectory: Score(1.0))(), group(episode)))
    return group_, Aux(values={"t0": values})


def test_advantages_and_returns_by_hand_skip_observation_tokens() -> None:
    group_, aux = scored()
    (advantage,) = PPO().advantages([group_], aux)
    # deltas: 0.9*0.25-0.5, 0.9*0.75-0.25, 1-0.75; decay 0.72
    d0, d1, d2 = 0.225 - 0.5, 0.675 - 0.25, 0.25
    a2, a1 = d2, d1 + 0.72 * d2
    a0 = d0 + 0.72 * a1
    assert advantage.streams[0] == pytest.approx([0, 0, a0, a1, 0, 0, a2], abs=1e-6)
    assert advantage.returns is not None
    assert advantage.returns[0] == pytest.approx([0, 0, a0 + 0.5, a1 + 0.25, 0, 0, a2 + 0.75], abs=1e-6)


def test_policy_and_value_losses_by_hand() -> None:
    group_, aux = scored()
    algorithm = PPO()
    (episode,) = group_.group.trajectories
    advantages = algorithm.advantages([group_], aux)
    logp = torch.full((3,), -0.5, requires_grad=True)
    values = torch.tensor([0.5, 0.25, 0.75], requires_grad=True)
    batch = collate([episode], advantages, logp=logp, values=values, aux=aux)
    assert batch.old_values is not None
    assert batch.old_values.tolist() == [0.5, 0.25, 0.75]
    output = algorithm.loss(batch)
    flat = flatten([episode], [advantages[0].streams])
    assert output.metrics["actor/loss"] == pytest.approx(-flat.mean(), abs=1e-6)
    assert output.metrics["critic/loss"] == pytest.approx(float(np.mean(flat**2)) / 2, abs=1e-6)
    output.loss.backward()
    assert logp.grad is not None
    assert values.grad is not None
    assert logp.grad.numpy() == pytest.approx(-flat / 3, abs=1e-6)
    assert values.grad.numpy() == pytest.approx(-0.5 * flat / 3, abs=1e-6), "dV of 1/2 (V - R)^2, with V = V_old"


def test_a_learner_trains_a_group_of_one_with_it() -> None:
    group_, aux = scored()
    algorithm, learner = PPO(), FakeLearner()
    metrics = learner.step(group_.group.trajectories, algorithm.advantages([group_], aux), algorithm.loss, aux=aux)
    assert metrics["grad_norm"] > 0
    assert algorithm.trains_singletons


def test_returns_are_there_for_all_or_for_nobody() -> None:
    group_, aux = scored()
    (episode,) = group_.group.trajectories
    (advantage,) = PPO().advantages([group_], aux)
    bare = Advantage("t0", advantage.streams)
    assert collate([episode], [bare], logp=torch.zeros(3)).returns is None
