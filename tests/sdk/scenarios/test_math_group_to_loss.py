"""A group of answers to a sum, from the first message to a gradient; every number is checked by hand."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from puppets import DiaryEngine, InlinePuppet, driver, play

from plugym.algorithm import Advantage, Algorithm, Aux, LossOutput, TokenBatch, collate, counted_trajectories, spread
from plugym.functional import aggregate, clipped_surrogate, group_advantages, log_ratio
from plugym.reward import reward
from plugym.scoring import score_group
from plugym.task import Task
from plugym.trajectory import ScoredGroup, Trajectory

SUM = Task("3+4", instruction="What is 3+4?", answer="7", data={"turns": 1})


@reward(range=(0, 1))
def exact(trajectory: Trajectory) -> bool:
    assert trajectory.task is not None
    return trajectory.final_text == trajectory.task.answer


class PlainGRPO(Algorithm):
    """Group advantages and the token-mean clipped surrogate."""

    def advantages(self, batch: Sequence[ScoredGroup], aux: Aux) -> list[Advantage]:
        return [
            spread(trajectory, float(advantage))
            for group in batch
            for (_, trajectory, _), advantage in zip(group.counted(), group_advantages(group.values()), strict=True)
        ]

    def loss(self, batch: TokenBatch) -> LossOutput:
        ratio = log_ratio(batch.logp, batch.old_logp).exp()
        per_token = clipped_surrogate(ratio, batch.advantages, 0.2, 0.28)
        loss = aggregate(
            per_token, "token-mean", batch.traj_index, batch.traj_tokens, batch.total_tokens, batch.total_trajs
        )
        return LossOutput(loss, {"actor/loss": loss.item()})


def scored() -> ScoredGroup:
    """Four answers: right, wrong, wrong, right; 2, 3, 1 and 2 sampled tokens with the end marker."""
    answers = ["7", "12", "", "7"]
    engine = DiaryEngine(lambda request, turn: answers[int(request.session[-1])])
    (played,) = play(driver(InlinePuppet, engine), [SUM], n=4)
    return asyncio.run(score_group("exact", exact(), played))


def test_scores_advantages_and_loss_by_hand() -> None:
    group = scored()
    assert group.values().tolist() == [1, 0, 0, 1]
    assert [score.correct for score in group.scores] == [True, False, False, True]

    algorithm = PlainGRPO()
    trajectories = counted_trajectories([group])
    advantages = algorithm.advantages([group], Aux())
    # mean 1/2, sample deviation sqrt(4 * 1/4 / 3) = 1/sqrt(3): the advantage is sqrt(3)/2
    expected = math.sqrt(3) / 2
    signs = [1, -1, -1, 1]
    for trajectory, advantage, sign in zip(trajectories, advantages, signs, strict=True):
        (stream,) = trajectory.streams
        assert advantage.streams[0] == pytest.approx(np.where(stream.loss_mask, sign * expected, 0), abs=1e-5)

    logp = torch.full((8,), -1.0, requires_grad=True)
    batch = collate(trajectories, advantages, logp=logp)
    assert batch.traj_tokens.tolist() == [2, 3, 1, 2]
    assert batch.traj_index.tolist() == [0, 0, 1, 1, 1, 2, 3, 3]
    assert (batch.total_tokens, batch.total_trajs) == (8, 4)
    output = algorithm.loss(batch)
    # on-policy every ratio is 1: the loss is -(2 - 3 - 1 + 2) * A / 8 = 0, the gradient of a token -A_t / 8
    assert output.loss.item() == pytest.approx(0, abs=1e-6)
    output.loss.backward()
    assert logp.grad is not None
    assert logp.grad.numpy() == pytest.approx(-batch.advantages.numpy() / 8, abs=1e-6)
    assert torch.isfinite(logp.grad).all()


def test_a_step_off_policy_clips_by_hand() -> None:
    group = scored()
    trajectories, algorithm = counted_trajectories([group]), PlainGRPO()
    old = {t.id: tuple(np.where(s.loss_mask, -1.5, 0).astype(np.float32) for s in t.streams) for t in trajectories}
    aux = Aux(old_logprobs=old)
    logp = torch.full((8,), -1.0, requires_grad=True)
    batch = collate(trajectories, algorithm.advantages([group], aux), logp=logp, aux=aux)
    loss = algorithm.loss(batch).loss
    loss.backward()
    # ratio exp(0.5) = 1.649: clipped at 1.28 (no gradient) where A > 0, unclipped where A < 0
    advantage, ratio = math.sqrt(3) / 2, math.exp(0.5)
    assert loss.item() == pytest.approx((-4 * 1.28 + 4 * ratio) * advantage / 8, abs=1e-4)
    assert logp.grad is not None
    assert logp.grad.numpy() == pytest.approx(
        [advantage * ratio / 8 if index in (1, 2) else 0.0 for index in batch.traj_index.tolist()], abs=1e-5
    )


def test_micro_batches_add_up_to_the_mini_batch() -> None:
    group = scored()
    trajectories, algorithm = counted_trajectories([group]), PlainGRPO()
    advantages = algorithm.advantages([group], Aux())
    flat = torch.linspace(-2, -0.1, 8)

    def gradient(parts: list[list[int]]) -> torch.Tensor:
        logp = flat.clone().requires_grad_()
        starts = np.cumsum([0, *(t.trained_tokens for t in trajectories)])
        for part in parts:
            rows = torch.cat([logp[starts[i] : starts[i + 1]] for i in part])
            batch = collate(
                [trajectories[i] for i in part],
                [advantages[i] for i in part],
                logp=rows,
                total_tokens=8,
                total_trajs=4,
            )
            algorithm.loss(batch).loss.backward()
        assert logp.grad is not None
        return logp.grad

    assert torch.allclose(gradient([[0, 1, 2, 3]]), gradient([[2, 0], [3], [1]]))
