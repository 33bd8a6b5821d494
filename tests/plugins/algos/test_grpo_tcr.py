"""GRPO-TCR: the shaping of rewards, the published vectors of its loss, and that it learns.

Vectors are those of the recipe's released code, worked out outside this repository.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from algo_cases import LIMITS, scalars, scored, trajectory, verdict

from plugym.algorithm import Aux, Limits, collate, counted_trajectories, spread
from plugym.errors import BadInput
from plugym.reward import Score
from plugym.trajectory import Group, ScoredGroup, Trajectory, stream_of
from plugym_algos.grpo import GRPO, GRPOConfig
from plugym_algos.grpo_tcr import GRPOTCR, GRPOTCRConfig

PAPER = Limits(max_response_tokens=20480, max_turn_tokens=20480, max_turns=16)


def shaped_values(group: ScoredGroup, limits: Limits = LIMITS, **settings: float | str) -> list[float | None]:
    return [score.value for score in GRPOTCR(GRPOTCRConfig.model_validate(settings)).shape(group, limits).scores]


# --- the tool term ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calls", "wrong"), [(0, -1.0), (1, -0.9), (2, -0.8), (3, -0.7), (4, -0.6), (5, -0.6), (8, -0.6)]
)
def test_wrong_answers_are_paid_for_calls_and_right_ones_are_not(calls: int, wrong: float) -> None:
    members = [trajectory("w", calls=calls), trajectory("r", calls=calls)]
    group = GRPOTCR().shape(scored(members, [verdict(False), verdict(True)]), LIMITS)
    assert [score.value for score in group.scores] == pytest.approx([wrong, 1.0])
    assert group.scores[0].parts == {"shaped/tool": pytest.approx(wrong), "shaped/overlong": 0.0}
    assert [score.correct for score in group.scores] == [False, True]


def test_the_tool_term_reaches_the_advantages() -> None:
    """Two wrong answers differ by their calls alone; without the term nothing is left to learn from."""
    group = scored([trajectory("a", calls=0), trajectory("b", calls=3)], [verdict(False), verdict(False)])
    shaped = GRPOTCR().shape(group, LIMITS)
    assert scalars(GRPOTCR(), shaped) == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-4)
    without = GRPOTCR(GRPOTCRConfig(tool_bonus=0.0))
    assert scalars(without, without.shape(group, LIMITS)) == [0.0, 0.0]


def test_a_score_without_verdict_keeps_its_value() -> None:
    group = scored([trajectory("a", calls=3)], [Score(0.3, parts={"judge": 0.3})])
    score = GRPOTCR().shape(group, LIMITS).scores[0]
    assert score.value == 0.3
    assert score.parts == {"judge": 0.3, "shaped/overlong": 0.0}


def test_other_rewards_of_a_composite_keep_their_part() -> None:
    """verifier + 0.5 * judge: the verdict's 0 becomes -0.9, the judge's 0.4 stays; so in a composite of composites."""
    inner = {"verifier": verdict(False), "judge": Score(0.8)}
    flat = Score(0.4, correct=False, sources=inner)
    nested = Score(0.4 + 2.0, correct=False, sources={"style": Score(2.0), "rest": flat})
    group = scored([trajectory("a", calls=1), trajectory("b", calls=1)], [flat, nested])
    assert shaped_values(group) == pytest.approx([-0.9 + 0.4, -0.9 + 0.4 + 2.0])


def test_what_has_no_score_is_left_alone() -> None:
    scores = [Score.unscored("lost"), Score.unscored("judge was down"), verdict(True)]
    group = scored([trajectory("a", infra=True), trajectory("b"), trajectory("c")], scores)
    assert GRPOTCR().shape(group, LIMITS).scores[:2] == tuple(scores[:2])


def test_shaping_changes_a_copy() -> None:
    group = scored([trajectory("a")], [verdict(False)])
    before = replace(group)
    assert GRPOTCR().shape(group, LIMITS) is not group
    assert group == before
    assert group.scores[0].parts == {}


# --- overlong shaping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "penalty"), [(16000, 0.0), (16384, 0.0), (17408, -0.25), (18432, -0.5), (20480, -1.0)]
)
@pytest.mark.parametrize("settings", [{}, {"overlong_cache": 0.2}, {"overlong_cache": 4096}])
def test_penalty_of_known_lengths(length: int, penalty: float, settings: dict[str, float]) -> None:
    group = scored([trajectory("a", [[(100, length)]])], [verdict(True)])
    score = GRPOTCR(GRPOTCRConfig(**settings)).shape(group, PAPER).scores[0]
    assert score.parts["shaped/overlong"] == pytest.approx(penalty)
    assert score.value == pytest.approx(1.0 + penalty)


def test_penalty_is_scaled_and_switched_off() -> None:
    group = scored([trajectory("a", [[(1, 512)]])], [verdict(True)])
    assert shaped_values(group) == [0.0]
    assert shaped_values(group, overlong_factor=0.25) == [0.75]
    assert shaped_values(group, overlong_factor=0.0) == [1.0]


def test_which_tokens_are_counted() -> None:
    """Two streams, one with an observation of 300 tokens between its turns: 420 tokens in all, 120 of the policy."""
    group = scored([trajectory("a", [[(50, 40), (300, 40)], [(90, 40)]])], [verdict(True)])
    limits = replace(LIMITS, max_response_tokens=420)
    assert shaped_values(group, limits, overlong_counts="paper") == pytest.approx([0.0])
    assert shaped_values(group, limits, overlong_counts="policy") == [1.0]
    limits = replace(LIMITS, max_response_tokens=120)
    assert shaped_values(group, limits, overlong_counts="policy") == pytest.approx([0.0])


def test_a_short_limit_still_has_a_zone() -> None:
    group = scored([trajectory("a", [[(9, n)]]) for n in (2, 3)], [verdict(True), verdict(True)])
    assert shaped_values(group, replace(LIMITS, max_response_tokens=3)) == [1.0, 0.0]


def test_a_zone_wider_than_the_limit_is_refused() -> None:
    group = scored([trajectory("a")], [verdict(True)])
    with pytest.raises(BadInput, match="overlong_cache=4096 tokens exceed the response limit of 512: lower it"):
        shaped_values(group, overlong_cache=4096)


# --- the loss -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "loss"),
    [(1, 0.0, -1), (1, 0.3, -1.28), (1, -0.3, -0.740818), (-1, 0.3, 1.349859), (-1, -0.3, 0.8), (-1, 3.0, 10.0)],
)
def test_loss_of_known_tokens(advantage: float, log_ratio: float, loss: float) -> None:
    member = trajectory("a", [[(1, 1)]])
    batch = collate([member], [spread(member, advantage)], logp=torch.tensor([-1.0], requires_grad=True))
    batch.old_logp = torch.tensor([-1.0 - log_ratio])
    assert GRPOTCR().loss(batch).loss.item() == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize(
    ("algo", "loss"),
    [
        (GRPOTCR(), 0.666667),
        (GRPO(), 0.75),
        (GRPO(GRPOConfig(aggregation="seq-mean-token-sum")), 2.0),
    ],
)
def test_aggregation_of_known_sequences(algo: GRPO, loss: float) -> None:
    members = [trajectory("a", [[(3, 2)]]), trajectory("b", [[(1, 1), (5, 3)]])]
    advantages = [spread(members[0], -1.0), spread(members[1], -0.5)]
    batch = collate(members, advantages, logp=torch.full((6,), -1.0, requires_grad=True))
    assert algo.loss(batch).loss.item() == pytest.approx(loss, abs=1e-6)


def test_the_whole_way_by_hand() -> None:
    """A right answer, a wrong one with two calls, a wrong one without, and one lost: from verdicts to the loss."""
    members = [
        trajectory("right", [[(4, 2)]]),
        trajectory("tried", [[(4, 1), (2, 1)], [(8, 2)]], calls=2),
        trajectory("lost", [[(4, 5)]], infra=True),
        trajectory("wrong", [[(4, 3)]]),
    ]
    scores = [verdict(True), verdict(False), Score.unscored("lost"), verdict(False)]
    algo = GRPOTCR()
    shaped = algo.shape(scored(members, scores), LIMITS)
    rewards = np.array([1.0, -0.8, -1.0])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    advantages = algo.advantages([shaped], Aux())
    assert scalars(algo, shaped) == pytest.approx(expected.tolist(), abs=1e-6)

    logp = torch.full((9,), -1.0, requires_grad=True)
    output = algo.loss(collate(counted_trajectories([shaped]), advantages, logp=logp))
    output.loss.backward()
    # On policy every ratio is 1: a token's gradient is -A / 9, nine tokens being trained.
    assert output.loss.item() == pytest.approx(-float(expected @ [2, 4, 3]) / 9, abs=1e-6)
    assert logp.grad is not None
    assert logp.grad.tolist() == pytest.approx((-expected / 9).repeat([2, 4, 3]).tolist(), abs=1e-6)


# --- learning -----------------------------------------------------------------------------------------------------


def sampled(name: str, token: int, logp: float) -> Trajectory:
    return Trajectory(name, None, "g", streams=(stream_of([([0], [token], [logp])]),))


@pytest.mark.parametrize(
    "algo", [GRPO(), GRPOTCR(), GRPOTCR(GRPOTCRConfig(correction="tis"))], ids=["grpo", "grpo_tcr", "grpo_tcr+tis"]
)
def test_a_policy_of_one_token_learns_which_one_is_right(algo: GRPO) -> None:
    torch.manual_seed(0)
    logits = torch.zeros(6, requires_grad=True)
    optimizer = torch.optim.Adam([logits], lr=0.2)
    for _ in range(25):
        with torch.no_grad():
            logprobs = logits.log_softmax(0)
            tokens = torch.multinomial(logprobs.exp(), 16, replacement=True).tolist()
        members = tuple(sampled(str(i), token, float(logprobs[token])) for i, token in enumerate(tokens))
        group = ScoredGroup(Group("g", None, members), tuple(verdict(token == 3) for token in tokens))
        advantages = algo.advantages([algo.shape(group, LIMITS)], Aux())
        for _ in range(2):
            optimizer.zero_grad()
            batch = collate(members, advantages, logp=logits.log_softmax(0)[torch.tensor(tokens)])
            batch.old_logp = batch.rollout_logp
            algo.loss(batch).loss.backward()
            optimizer.step()
    assert logits.softmax(0)[3] > 0.9
