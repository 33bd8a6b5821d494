"""A reward model that judges every turn by several votes and learns from its own generations, with a Learner it is
handed: it sees no model, no optimizer and no device."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import failed, group, trajectory

from plugym.algorithm import LossOutput, TokenBatch, spread
from plugym.functional import aggregate, clipped_surrogate, log_ratio, step_rewards, vote_rewards
from plugym.learner import Learner
from plugym.reward import Composite, Metrics, Part, RewardContext, RewardProvider, Score, TrainableReward
from plugym.scoring import score_group
from plugym.testing import FakeLearner
from plugym.trajectory import Group, ScoredGroup, Trajectory

VOTES = 3


class StepModel(TrainableReward):
    """Votes +1 or -1 on each turn; a vote is right where it agrees with the verdict on the whole episode."""

    range = (-2.0, 2.0)
    learner: Learner

    def __init__(self, scripted: dict[str, list[list[float | None]]]) -> None:
        super().__init__()
        self.scripted = scripted
        self.seen = 0

    async def open(self, ctx: RewardContext) -> None:
        assert ctx.learner is not None
        self.learner = ctx.learner("step_model")

    async def score(self, group: Group) -> list[Score]:
        return [Score.unscored("infra") if t.infra_failed else self._score(t) for t in group.trajectories]

    def _score(self, judged: Trajectory) -> Score:
        outcome = 1.0 if judged.final_text == "right" else -1.0
        votes = tuple(tuple(row) for row in self.scripted[judged.id])
        steps = tuple(float(x) for x in step_rewards(outcome, votes, 1.0))
        # One generation for each (turn, sample), tokens included: what it will be trained on.
        evidence = tuple(
            trajectory(f"{judged.id}/vote/{turn}/{sample}", str(vote), tokens=(sample + 1,))
            for turn, row in enumerate(votes)
            for sample, vote in enumerate(row)
        )
        return Score(float(np.mean(steps)), outcome > 0, steps=steps, votes=votes, evidence=evidence)

    async def learn(self, scored: Sequence[ScoredGroup]) -> Metrics:
        episodes, advantages = [], []
        for scored_group in scored:
            for index, _, _ in scored_group.counted():
                score = scored_group.scores[index]
                assert score.steps is not None
                assert score.votes is not None
                rewards = np.concatenate(vote_rewards(score.steps, score.votes))
                for generation, value in zip(score.evidence, rewards, strict=True):
                    episodes.append(generation)
                    advantages.append(spread(generation, float(value)))
        self.seen += len(episodes)
        if not episodes:
            return {}
        return {"votes": len(episodes), **self.learner.step(episodes, advantages, self._loss)}

    def _loss(self, batch: TokenBatch) -> LossOutput:
        per_token = clipped_surrogate(log_ratio(batch.logp, batch.old_logp).exp(), batch.advantages, 0.2, 0.2)
        counts = (batch.traj_index, batch.traj_tokens, batch.total_tokens, batch.total_trajs)
        return LossOutput(aggregate(per_token, "token-mean", *counts))

    def save(self, path: Path) -> None:
        self.learner.save(path)
        (path / "state.json").write_text(json.dumps({"seen": self.seen}))

    def load(self, path: Path) -> None:
        self.learner.load(path)
        self.seen = json.loads((path / "state.json").read_text())["seen"]


SCRIPT: dict[str, list[list[float | None]]] = {
    "t0": [[1, 1, -1], [1, 1, 1]],
    "t1": [[-1, None, -1], [-1, -1, 1]],
}


def played() -> Group:
    return group(
        trajectory("t0", "right", tokens=(2, 1)), trajectory("t1", "wrong", tokens=(1, 1)), failed("t2"), name="g0"
    )


def test_it_learns_from_votes_and_evidence_through_its_learner(tmp_path: Path) -> None:
    learners: dict[str, FakeLearner] = {}

    def hand_out(adapter: str) -> FakeLearner:
        return learners.setdefault(adapter, FakeLearner())

    async def main() -> tuple[StepModel, ScoredGroup, Metrics]:
        model = StepModel(SCRIPT)
        await model.open(RewardContext(learner=hand_out))
        scored = await score_group("steps", model, played())
        return model, scored, await model.learn([scored])

    model, scored, metrics = asyncio.run(main())
    # R_t = outcome + mean of the votes, an unparsable one as 0
    assert scored.scores[0].steps == pytest.approx((1 + 1 / 3, 2.0))
    assert scored.scores[0].value == pytest.approx((4 / 3 + 2) / 2)
    assert scored.scores[1].steps == pytest.approx((-1 - 2 / 3, -1 - 1 / 3))
    assert scored.scores[2].value is None
    assert len(scored.scores[0].evidence) == 2 * VOTES
    assert metrics["votes"] == 12, "every counted episode's generations, none of the failed one"

    learner = learners["step_model"]
    (batch,) = learner.batches
    assert [t.id for t in batch[:3]] == ["t0/vote/0/0", "t0/vote/0/1", "t0/vote/0/2"]
    # The loss on-policy is -sum of advantage times tokens over all tokens; its gradient in the one weight is the same.
    rewards = np.concatenate([[4 / 3, 4 / 3, -4 / 3, 2, 2, 2], [5 / 3, -2, 5 / 3, 4 / 3, 4 / 3, -4 / 3]])
    tokens = [sample + 1 for _ in range(4) for sample in range(VOTES)]
    expected = -float(np.dot(rewards, tokens)) / sum(tokens)
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)
    assert learner.weight == pytest.approx(-1.0 - 0.1 * expected, abs=1e-6)

    model.save(tmp_path)
    fresh = StepModel(SCRIPT)
    fresh_learner = FakeLearner()
    asyncio.run(fresh.open(RewardContext(learner=lambda adapter: fresh_learner)))
    fresh.load(tmp_path)
    assert (fresh.seen, fresh_learner.weight) == (12, learner.weight)


def test_inside_a_composite_it_learns_from_its_own_untouched_scores(tmp_path: Path) -> None:
    class Length(RewardProvider):
        async def score(self, group: Group) -> list[Score]:
            return [Score(100.0) for _ in group.trajectories]

    async def main() -> tuple[ScoredGroup, Metrics]:
        learner = FakeLearner()
        composite = Composite([Part("length", Length(), 0.5), Part("steps", StepModel(SCRIPT), 1.0)])
        await composite.open(RewardContext(learner=lambda adapter: learner))
        scored = await score_group("both", composite, played())
        metrics = await composite.learn([scored])
        composite.save(tmp_path)
        before, learner.weight = learner.weight, 0.0
        composite.load(tmp_path)
        assert learner.weight == before
        await composite.close()
        return scored, metrics

    scored, metrics = asyncio.run(main())
    assert scored.scores[0].value == pytest.approx(50 + (4 / 3 + 2) / 2)
    assert scored.scores[0].steps == pytest.approx((4 / 3, 2.0)), "the only child with step scores passes them on"
    assert scored.scores[2].value is None, "an infra failure stays unscored inside a composite too"
    assert metrics["steps/votes"] == 12
    assert (tmp_path / "steps" / "state.json").is_file()
