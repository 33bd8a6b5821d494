"""The maths that every algorithm shares: pure functions without state, one place for each formula.

| module | what is in it | imports torch |
|---|---|---|
| `modes` | names of the variants, as types for an algorithm's `Config` | no |
| `statistics` | group and leave-one-out advantages, whitening, pass@k | no |
| `returns` | discounted returns, GAE | no |
| `shaping` | overlong penalty, tool term, step rewards from votes | no |
| `layout` | the flat layout of a micro-batch | yes |
| `policy` | importance ratios, clipped surrogate, CISPO, clip fractions | yes |
| `kl`, `value` | KL estimators; the critic's loss | yes |
| `off_policy` | correction and measure of the sampler-learner gap | yes |
| `aggregation` | per-token losses to the loss of a mini-batch | yes |
| `logits` | log-probs and entropies in chunks | yes |

An algorithm plugin is then a few lines that read like its equation; a third-party one copies nothing.
Everything is importable from here. The torch half is loaded at first use, so that scoring and reporting
never pay for torch. Nothing here imports the rest of plugym.

>>> from plugym.functional import group_advantages
>>> group_advantages([1, 0], scale="none").tolist()
[0.5, -0.5]
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .modes import AdvantageScale, AggregationMode, CorrectionMode, KLKind
from .returns import discounted_returns, gae
from .shaping import overlong_penalty, step_rewards, tool_shaped_reward, vote_rewards
from .statistics import group_advantages, pass_at_k, rloo_advantages, whiten

if TYPE_CHECKING:
    from .aggregation import aggregate
    from .kl import kl_penalty
    from .layout import trajectory_means
    from .logits import entropy_from_logits, token_logprobs
    from .off_policy import importance_weights, mismatch_kl
    from .policy import (
        ClipFractions,
        cispo_loss,
        clip_fractions,
        clipped_surrogate,
        gspo_ratio,
        log_ratio,
        sequence_log_ratio,
    )
    from .value import value_loss

__all__ = [
    "AdvantageScale",
    "AggregationMode",
    "ClipFractions",
    "CorrectionMode",
    "KLKind",
    "aggregate",
    "cispo_loss",
    "clip_fractions",
    "clipped_surrogate",
    "discounted_returns",
    "entropy_from_logits",
    "gae",
    "group_advantages",
    "gspo_ratio",
    "importance_weights",
    "kl_penalty",
    "log_ratio",
    "mismatch_kl",
    "overlong_penalty",
    "pass_at_k",
    "rloo_advantages",
    "sequence_log_ratio",
    "step_rewards",
    "token_logprobs",
    "tool_shaped_reward",
    "trajectory_means",
    "value_loss",
    "vote_rewards",
    "whiten",
]

_TORCH_HALF = {
    "aggregate": "aggregation",
    "kl_penalty": "kl",
    "trajectory_means": "layout",
    "entropy_from_logits": "logits",
    "token_logprobs": "logits",
    "importance_weights": "off_policy",
    "mismatch_kl": "off_policy",
    "ClipFractions": "policy",
    "cispo_loss": "policy",
    "clip_fractions": "policy",
    "clipped_surrogate": "policy",
    "gspo_ratio": "policy",
    "log_ratio": "policy",
    "sequence_log_ratio": "policy",
    "value_loss": "value",
}
"""Where each name of the torch half lives."""


def __getattr__(name: str) -> Any:
    if name not in _TORCH_HALF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_TORCH_HALF[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
