"""GRPO: Group Relative Policy Optimization, DeepSeekMath (arXiv 2402.03300), and the switches of its successors.

What belongs here is how the pieces of `plugym.functional` are put together: the group's advantages, the clipped
surrogate, the weighted extra terms, and the metrics. Formulas are there; what changes a reward is up to subclasses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, ValidationInfo, field_validator

from plugym import functional as F
from plugym.algorithm import Advantage, Algorithm, AlgorithmConfig, Aux, LossOutput, Need, TokenBatch, spread
from plugym.functional import AdvantageScale, AggregationMode, CorrectionMode
from plugym.trajectory import ScoredGroup

if TYPE_CHECKING:
    from torch import Tensor


class GRPOConfig(AlgorithmConfig):
    """Settings of `grpo`. Validation names the option, so field order matters: a check looks back."""

    clip_low: float = Field(0.2, ge=0, lt=1, description="the ratio's lower bound is 1 minus this")
    clip_high: float = Field(0.2, ge=0, description="the ratio's upper bound is 1 plus this")
    dual_clip: float | None = Field(
        None,
        gt=1,
        validate_default=True,
        description="with a negative advantage the loss is at most this times the advantage; none for no bound",
    )
    norm_length: int | None = Field(
        None, ge=1, description="constant length in tokens that seq-mean-token-sum-norm divides by"
    )
    aggregation: AggregationMode = Field(
        "seq-mean-token-mean", description="how the losses of tokens become one number"
    )
    scale: AdvantageScale = Field(
        "std", description="divide advantages by the group's standard deviation, or not (Dr. GRPO)"
    )
    kl_coef: float = Field(0.0, ge=0, description="weight of the KL divergence from the starting policy")
    kl_kind: Literal["k2", "k3"] = Field(
        "k3", description="estimator of that divergence; k1 is not offered, its expected gradient is 0"
    )
    entropy_coef: float = Field(0.0, ge=0, description="weight of the entropy bonus")
    correction: CorrectionMode = Field(
        "off",
        description="correct for sampling with other log-probs than those trained on: tis cuts large importance "
        "weights, icepop masks tokens whose weight is outside a band",
    )
    tis_cap: float = Field(2.0, gt=0, description="largest importance weight of tis")
    icepop_low: float = Field(0.5, ge=0, description="icepop: tokens with a smaller importance weight are masked")
    icepop_high: float = Field(
        5.0, gt=0, validate_default=True, description="icepop: tokens with a larger importance weight are masked"
    )

    @field_validator("dual_clip")
    @classmethod
    def _is_beyond_the_upper_bound(cls, value: float | None, info: ValidationInfo) -> float | None:
        high = info.data.get("clip_high")
        if value is not None and high is not None and value <= 1 + high:
            raise ValueError(f"it must be above 1 + clip_high = {1 + high}")
        return value

    @field_validator("icepop_high")
    @classmethod
    def _is_above_the_lower_end(cls, value: float, info: ValidationInfo) -> float:
        low = info.data.get("icepop_low")
        if low is not None and value <= low:
            raise ValueError(f"it must be above icepop_low = {low:g}")
        return value

    @field_validator("aggregation")
    @classmethod
    def _has_its_length(cls, value: AggregationMode, info: ValidationInfo) -> AggregationMode:
        if value == "seq-mean-token-sum-norm" and info.data.get("norm_length") is None:
            raise ValueError("it needs norm_length, the constant to divide by")
        return value


class GRPO(Algorithm):
    """Advantages against the group's mean, PPO's clipped loss per token.

    With the group's rewards `R_1 .. R_G` and `r_t = pi(t) / pi_old(t)`:

        A_i  = (R_i - mean(R)) / (std(R) + 1e-6)                      std with G - 1; scale = "none": without it
        l_it = max(-A_i r_it, -A_i clamp(r_it, 1 - clip_low, 1 + clip_high))
        loss = aggregate(w_it l_it + kl_coef KL_it - entropy_coef H_it)

    `w` is 1, or the importance weight of what the sampler got wrong: truncated with `correction = "tis"`, 0 outside a
    band with `"icepop"` (`functional.importance_weights`). The defaults are the published method
    (arXiv 2402.03300, equations 3 and 4) without its KL term, which needs a second model in memory: its coefficient
    is `kl_coef = 0.04`. Only what has a score counts: infrastructure failures are in no mean and no deviation. A
    group of one has nobody to be compared with; its reward is its advantage.

    Metrics, added up over micro-batches: `pg_loss`, and as means over the tokens of the mini-batch `clip_low`,
    `clip_high`, `clip_dual` (share of tokens whose gradient a bound has stopped), `kl`, `entropy`, `tis_capped`
    (share of tokens whose weight was cut) and `icepop_masked` (share of tokens left out for their weight).

    >>> from plugym.reward import Score
    >>> from plugym.trajectory import Group, ScoredGroup, Trajectory, stream_of
    >>> answers = [Trajectory(str(i), None, "g", streams=(stream_of([([1], [2], [-1.0])]),)) for i in range(2)]
    >>> scored = ScoredGroup(Group("g", None, tuple(answers)), (Score(1.0), Score(0.0)))
    >>> [float(a.streams[0][1]) for a in GRPO(GRPOConfig(scale="none")).advantages([scored], Aux())]
    [0.5, -0.5]
    """

    Config = GRPOConfig
    config: GRPOConfig

    def __init__(self, config: GRPOConfig | None = None) -> None:
        super().__init__(config)
        wanted = {Need.REF_LOGPROBS: self.config.kl_coef > 0, Need.ENTROPY: self.config.entropy_coef > 0}
        self.needs = frozenset(need for need, used in wanted.items() if used)

    def advantages(self, batch: Sequence[ScoredGroup], aux: Aux) -> list[Advantage]:
        return [
            spread(trajectory, float(advantage))
            for group in batch
            for (_, trajectory, _), advantage in zip(
                group.counted(), F.group_advantages(group.values(), scale=self.config.scale), strict=True
            )
        ]

    def loss(self, batch: TokenBatch) -> LossOutput:
        config = self.config
        bounds = (config.clip_low, config.clip_high, config.dual_clip)
        ratio = F.log_ratio(batch.logp, batch.old_logp).exp()
        weights = F.importance_weights(
            batch.old_logp,
            batch.rollout_logp,
            config.correction,
            config.tis_cap,
            (config.icepop_low, config.icepop_high),
        )
        policy = F.aggregate(weights * F.clipped_surrogate(ratio, batch.advantages, *bounds), *self._counts(batch))

        # Shares of this micro-batch's tokens, as its part of a mean over the mini-batch.
        part = len(batch.logp) / batch.total_tokens
        low, high, dual = (share.item() * part for share in F.clip_fractions(ratio, batch.advantages, *bounds))
        metrics = {"pg_loss": policy.item(), "clip_low": low, "clip_high": high, "clip_dual": dual}
        if config.correction == "tis":
            metrics["tis_capped"] = int((weights >= config.tis_cap).sum()) / batch.total_tokens
        elif config.correction == "icepop":
            metrics["icepop_masked"] = int((weights == 0).sum()) / batch.total_tokens
        return self._with_extra_terms(batch, LossOutput(policy, metrics))

    def _with_extra_terms(self, batch: TokenBatch, output: LossOutput) -> LossOutput:
        """The terms that hold whatever the advantage: divergence from the starting policy, and entropy."""
        loss, metrics = output.loss, dict(output.metrics)
        if self.config.kl_coef > 0:
            if batch.ref_logp is None:
                raise ValueError("kl_coef > 0 needs TokenBatch.ref_logp: the runner must honour `needs`")
            kl = F.kl_penalty(batch.logp, batch.ref_logp, self.config.kl_kind)
            loss = loss + self.config.kl_coef * F.aggregate(kl, *self._counts(batch))
            metrics["kl"] = kl.sum().item() / batch.total_tokens
        if self.config.entropy_coef > 0:
            if batch.entropy is None:
                raise ValueError("entropy_coef > 0 needs TokenBatch.entropy: the runner must honour `needs`")
            loss = loss - self.config.entropy_coef * F.aggregate(batch.entropy, *self._counts(batch))
            metrics["entropy"] = batch.entropy.sum().item() / batch.total_tokens
        return LossOutput(loss, metrics)

    def _counts(self, batch: TokenBatch) -> tuple[AggregationMode, Tensor, Tensor, int, int, int | None]:
        """The arguments of `aggregate` after the losses."""
        return (
            self.config.aggregation,
            batch.traj_index,
            batch.traj_tokens,
            batch.total_tokens,
            batch.total_trajs,
            self.config.norm_length,
        )

    @property
    def zero_advantage_is_zero_loss(self) -> bool:
        return self.config.kl_coef == 0 and self.config.entropy_coef == 0
