"""GRPO-TCR: GRPO with token-level loss, clip-higher and overlong reward shaping, and a reward term for tools.

From 'Demystifying Reinforcement Learning in Agentic Reasoning' (arXiv 2510.11701). Token-level loss and clip-higher
are other defaults of GRPO's settings; what belongs here is the shaping of rewards before the advantages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field

from plugym.algorithm import Limits
from plugym.errors import BadInput
from plugym.functional import AggregationMode, overlong_penalty, tool_shaped_reward
from plugym.reward import Score
from plugym.trajectory import ScoredGroup, Trajectory

from .grpo import GRPO, GRPOConfig


class GRPOTCRConfig(GRPOConfig):
    """Settings of `grpo_tcr`."""

    clip_high: float = Field(0.28, ge=0, description="the ratio's upper bound is 1 plus this")
    dual_clip: float | None = Field(
        10.0,
        gt=1,
        validate_default=True,
        description="with a negative advantage the loss is at most this times the advantage; none for no bound",
    )
    aggregation: AggregationMode = Field("token-mean", description="how the losses of tokens become one number")
    overlong_cache: float = Field(
        0.2,
        gt=0,
        description="width of the zone below the response limit in which the penalty grows: "
        "below 1 a share of the limit, else tokens",
    )
    overlong_factor: float = Field(1.0, ge=0, description="penalty at the limit; 0 switches it off")
    overlong_counts: Literal["paper", "policy"] = Field(
        "paper",
        description="length that is penalised: generated and observation tokens, as in the paper, or generated only",
    )
    tool_bonus: float = Field(0.1, ge=0, description="what each executed tool call adds to a wrong answer")
    tool_cap: float = Field(-0.6, ge=-1, le=1, description="the most a wrong answer can get")


class GRPOTCR(GRPO):
    """GRPO with T, C and R.

    - T: the loss is a mean over all tokens of the mini-batch (`aggregation = "token-mean"`).
    - C: the ratio is clipped to [1 - 0.2, 1 + 0.28], with a dual clip at 10.
    - R: equation 9, a penalty that grows from 0 to `-overlong_factor` over the last `overlong_cache` tokens below
      `Limits.max_response_tokens`.
    - Tools: equation 8 as its authors released it. Where a score has a verdict, its value becomes 1 for a right
      answer and `min(-0.6, -1 + 0.1 n)` for a wrong one, n the tool calls that were really executed.

    `shape` sets the value and leaves the verdict. `parts` gets `shaped/tool`, the reward by the verdict, and
    `shaped/overlong`, the penalty. A score without a verdict (`correct` is None) keeps its own value, plus the
    penalty. Of a `Composite`, the child that gave the verdict has its value replaced (as if its weight were 1), and
    what the other children add stays.

    >>> from plugym.trajectory import Group, Turn
    >>> from plugym.message import Action
    >>> wrong = Trajectory("t", None, "g", turns=(Turn((), Action(), executed_calls=2),))
    >>> group = ScoredGroup(Group("g", None, (wrong,)), (Score(0.0, correct=False),))
    >>> limits = Limits(max_response_tokens=512, max_turn_tokens=512, max_turns=4)
    >>> GRPOTCR().shape(group, limits).scores[0].value
    -0.8
    """

    Config = GRPOTCRConfig
    config: GRPOTCRConfig

    def shape(self, group: ScoredGroup, limits: Limits) -> ScoredGroup:
        """The group with shaped values. Raises `BadInput` when `overlong_cache` exceeds the response limit."""
        scores = list(group.scores)
        for index, trajectory, value in group.counted():
            scores[index] = self._shaped(scores[index], value, trajectory, limits)
        return replace(group, scores=tuple(scores))

    def _shaped(self, score: Score, value: float, trajectory: Trajectory, limits: Limits) -> Score:
        parts = dict(score.parts)
        if score.correct is not None:
            parts["shaped/tool"] = tool_shaped_reward(
                score.correct, trajectory.executed_calls, bonus=self.config.tool_bonus, cap=self.config.tool_cap
            )
            value += parts["shaped/tool"] - _verdict_value(score, value)
        parts["shaped/overlong"] = self._overlong(trajectory, limits)
        return replace(score, value=value + parts["shaped/overlong"], parts=parts)

    def _overlong(self, trajectory: Trajectory, limits: Limits) -> float:
        limit, cache = limits.max_response_tokens, self.config.overlong_cache
        if cache > limit:
            raise BadInput(
                f"overlong_cache={cache:g} tokens exceed the response limit of {limit}: "
                "lower it, or give a share of the limit such as 0.2"
            )
        width = max(1, round(cache * limit)) if cache < 1 else round(cache)
        length = trajectory.response_tokens(observations=self.config.overlong_counts == "paper")
        return overlong_penalty(length, limit, width, self.config.overlong_factor)


def _verdict_value(score: Score, value: float) -> float:
    """What the source of the verdict contributed: the value itself, or that of the first child with a verdict."""
    for child in score.sources.values():
        if child.correct is not None and child.value is not None:
            return _verdict_value(child, child.value)
    return value
