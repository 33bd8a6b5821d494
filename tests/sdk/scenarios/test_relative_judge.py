"""A judge that ranks the answers of a group against each other, and cannot place one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import numpy as np
import pytest
from builders import failed, group, trajectory

from plugym.algorithm import Advantage, Algorithm, Aux, LossOutput, TokenBatch, counted_trajectories, spread
from plugym.engine import Engine, GenerateRequest
from plugym.errors import InfraError, InfraKind, RewardError
from plugym.functional import group_advantages
from plugym.message import Message
from plugym.metrics import batch_metrics
from plugym.reward import RewardContext, RewardProvider, Score
from plugym.rollout.scripted import ScriptedEngine
from plugym.scoring import score_group
from plugym.trajectory import Group, ScoredGroup


class Ranker(RewardProvider):
    """Shows all answers to an engine, which names them from best to worst. Best gets 1, worst 0."""

    range = (0.0, 1.0)
    engine: Engine

    async def open(self, ctx: RewardContext) -> None:
        self.engine = ctx.engines["judge"]

    async def score(self, group: Group) -> list[Score]:
        answers = "\n".join(f"{i}: {t.final_text}" for i, t in enumerate(group.trajectories))
        request = GenerateRequest(messages=(Message("user", answers),), session=group.id)
        order = json.loads((await self.engine.generate(request)).text)
        ranks = {index: 1 - place / (len(order) - 1) for place, index in enumerate(order)}
        return [
            Score(ranks[i], parts={"rank": ranks[i]}) if i in ranks else Score.unscored("the judge did not place it")
            for i in range(len(group.trajectories))
        ]


class Mean(Algorithm):
    """The advantage is the distance to the group's mean."""

    def advantages(self, batch: Sequence[ScoredGroup], aux: Aux) -> list[Advantage]:
        return [
            spread(trajectory, float(advantage))
            for group in batch
            for (_, trajectory, _), advantage in zip(
                group.counted(), group_advantages(group.values(), scale="none"), strict=True
            )
        ]

    def loss(self, batch: TokenBatch) -> LossOutput:
        raise NotImplementedError


def judged(says: str, answers: Group) -> ScoredGroup:
    async def main() -> ScoredGroup:
        provider = Ranker()
        await provider.open(RewardContext(engines={"judge": ScriptedEngine(script=lambda request, turn: says)}))
        return await score_group("ranker", provider, answers)

    return asyncio.run(main())


def test_the_one_it_cannot_place_stays_unscored_and_the_group_stays_whole() -> None:
    answers = group(*(trajectory(f"t{i}", "x" * i) for i in range(4)))
    scored = judged("[3, 0, 1]", answers)
    assert scored.group is answers
    assert [score.value for score in scored.scores] == [0.5, 0.0, None, 1.0]
    assert scored.scores[2].why == "the judge did not place it"
    assert [index for index, _, _ in scored.counted()] == [0, 1, 3]

    advantages = Mean().advantages([scored], Aux())
    assert [advantage.trajectory_id for advantage in advantages] == ["t0", "t1", "t3"]
    assert [t.id for t in counted_trajectories([scored])] == ["t0", "t1", "t3"]
    # mean of (0.5, 0, 1) is 0.5: the unscored one is not a 0 in it, which would make it 0.375
    assert [a.streams[0].max() if a.streams[0].any() else 0 for a in advantages] == [0, 0, 0.5]
    assert [a.streams[0].min() for a in advantages] == [0, -0.5, 0]

    metrics = batch_metrics([scored])
    assert metrics["reward/unscored"] == 1
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/rank"] == 0.5


def test_an_infra_failed_episode_is_in_no_statistic_whatever_the_judge_says() -> None:
    answers = group(trajectory("t0"), failed("t1"), trajectory("t2"))
    scored = judged("[1, 0, 2]", answers)
    assert [score.value for score in scored.scores] == [0.5, None, 0.0]
    metrics = batch_metrics([scored])
    assert (metrics["reward/unscored"], metrics["infra/env"], metrics["episodes"]) == (0, 1, 2)
    assert metrics["reward/mean"] == 0.25
    assert "stop/infra" not in metrics


def test_a_judge_that_cannot_be_reached_leaves_the_group_unscored() -> None:
    class Down(Ranker):
        async def score(self, group: Group) -> list[Score]:
            raise ConnectionError("refused")

    async def main() -> ScoredGroup:
        return await score_group("judge", Down(), group(trajectory("t0"), trajectory("t1")))

    scored = asyncio.run(main())
    assert scored.values().tolist() == []
    assert "infra/reward: reward 'judge': ConnectionError: refused" in scored.scores[0].why
    assert not Mean().keep(scored)


def test_an_infra_error_keeps_its_more_precise_kind() -> None:
    class NoSandbox(Ranker):
        async def score(self, group: Group) -> list[Score]:
            raise InfraError(InfraKind.SANDBOX, "gone")

    scored = asyncio.run(score_group("code", NoSandbox(), group(trajectory("t0"))))
    assert scored.scores[0].why == "infra/sandbox: gone"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ([Score(1.0)], "returned 1 scores for 2 trajectories of g"),
        ([Score(1.0), Score(float("nan"))], "gave nan for trajectory t1"),
        ([Score(1.0), Score(1.5)], r"gave 1.5 for trajectory t1, outside its range \[0.0, 1.0\]"),
        ([Score(1.0), Score(1.0, parts={"tone": float("inf")})], "gave inf for trajectory t1"),
        ([Score(1.0), Score(1.0, steps=(1.0, 0.0))], "gave 2 step scores for 1 turns of t1"),
        ([Score(1.0), Score(1.0, votes=((1.0,), (0.0,)))], "gave 2 lists of votes for 1 turns of t1"),
        ([Score(1.0), Score(1.0, votes=((None, float("nan")),))], "gave nan for trajectory t1"),
        ([Score(1.0), Score("good")], "gave 'good' for trajectory t1"),
        ([Score(1.0), 1.0], "gave 1.0 for trajectory t1, which is not a Score"),
    ],
)
def test_a_provider_that_breaks_the_contract_is_named_with_the_trajectory(given: list[Score], problem: str) -> None:
    class Broken(Ranker):
        async def score(self, group: Group) -> list[Score]:
            return given

    with pytest.raises(RewardError, match=f"reward 'ranker' {problem}"):
        asyncio.run(score_group("ranker", Broken(), group(trajectory("t0"), trajectory("t1"))))


def test_numpy_numbers_are_numbers() -> None:
    class Fine(Ranker):
        async def score(self, group: Group) -> list[Score]:
            return [Score(np.float32(0.5)), Score(np.float64(1))]

    scored = asyncio.run(score_group("r", Fine(), group(trajectory("t0"), trajectory("t1"))))
    assert scored.values().tolist() == [0.5, 1.0]
