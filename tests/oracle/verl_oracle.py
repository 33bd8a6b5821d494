"""verl's policy losses, KL estimators, advantages and value loss, called alone.

verl imports ray with its first module; the functions read here do not use it, so stand-ins take its place.
Needs, in a venv of its own with Python < 3.13 (nothing of it is an extra of this project):
    pip install torch==2.13.0 transformers==5.24.0 omegaconf hydra-core codetiming datasets pandas numpy
    pip install tensordict==0.10.0 && pip install --no-deps verl==0.9.1
    pip install -e .
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from golden_cases import CLIP_HIGH, CLIP_LOW, MAX_LENGTH, Case, Inputs

_RAY = (
    "ray",
    "ray._private",
    "ray.actor",
    "ray.experimental",
    "ray.experimental.state",
    "ray.experimental.state.api",
    "ray.util",
    "ray.util.collective",
    "ray.util.placement_group",
    "ray.util.scheduling_strategies",
    "ray.util.state",
)
for _name in _RAY:
    sys.modules[_name] = MagicMock(__spec__=ModuleSpec(_name, None), __path__=[])

from omegaconf import OmegaConf  # noqa: E402
from verl.trainer.ppo import core_algos  # noqa: E402
from verl.workers.config import ActorConfig  # noqa: E402

SOURCE = f"verl {version('verl')}"
DUAL_CLIP = 3.0
GAMMA, LAM, VALUE_CLIP = 0.97, 0.9, 0.2

# Case name up to the first '+' -> verl's policy loss.
_NAMES = {"vanilla": "vanilla", "gspo": "gspo", "cispo": "cispo"}

CASES = (
    Case("vanilla+token-mean", "token-mean", dual_clip=DUAL_CLIP),
    Case("vanilla+seq-mean-token-mean", "seq-mean-token-mean", dual_clip=DUAL_CLIP),
    Case("vanilla+seq-mean-token-sum", "seq-mean-token-sum", dual_clip=DUAL_CLIP),
    Case("vanilla+seq-mean-token-sum-norm", "seq-mean-token-sum-norm", dual_clip=DUAL_CLIP),
    Case("vanilla+k1", "token-mean", dual_clip=DUAL_CLIP, beta=0.04, kl="k1"),
    Case("vanilla+k2", "token-mean", dual_clip=DUAL_CLIP, beta=0.04, kl="k2"),
    Case("vanilla+k3", "token-mean", dual_clip=DUAL_CLIP, beta=0.04, kl="k3"),
    Case("gspo", "seq-mean-token-mean", ratio="gspo"),
    Case("gspo+token-mean", "token-mean", ratio="gspo"),
    Case("cispo", "token-mean", loss="cispo"),
)


def _config() -> Any:
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio=CLIP_LOW,
        clip_ratio_low=CLIP_LOW,
        clip_ratio_high=CLIP_HIGH,
        clip_ratio_c=DUAL_CLIP,
    )
    config.global_batch_info["loss_scale_factor"] = MAX_LENGTH
    return config


def oracle_loss(case: Case, inputs: Inputs, dtype: torch.dtype = torch.float64) -> tuple[float, list[list[float]]]:
    """verl's loss and its gradient by the log-probs, float[B][T]."""
    logp = inputs.tensor("logp", dtype).requires_grad_()
    mask = inputs.tensor("mask", dtype)
    config = _config()
    loss, _ = core_algos.get_policy_loss_fn(_NAMES[case.name.split("+")[0]])(
        old_log_prob=inputs.tensor("old_logp", dtype),
        log_prob=logp,
        advantages=inputs.tensor("advantages", dtype)[:, None].expand_as(logp),
        response_mask=mask,
        loss_agg_mode=case.mode,
        config=config,
    )
    if case.beta:
        kl = core_algos.kl_penalty(logp, inputs.tensor("ref_logp", dtype), case.kl)
        loss = loss + case.beta * core_algos.agg_loss(kl, mask, case.mode, **config.global_batch_info)
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.tolist()


def oracle_advantages(inputs: Inputs, groups: list[int]) -> dict[str, Any]:
    """verl's advantages with `inputs.advantages` as the outcome reward of each trajectory.

    The reward stands on the last trained token; `groups` gives the group of each trajectory. Values of
    untrained positions are whatever verl leaves there.
    """
    mask = inputs.tensor("mask")
    rewards = torch.zeros_like(mask)
    for row, reward in enumerate(inputs.advantages):
        trained = mask[row].nonzero()
        rewards[row, int(trained[-1]) if len(trained) else 0] = reward
    index = np.array(groups)
    config = OmegaConf.create({"gamma": GAMMA})
    outcome = {
        "grpo": {"norm_adv_by_std_in_grpo": True},
        "grpo_no_std": {"norm_adv_by_std_in_grpo": False},
        "rloo": {},
        "reinforce_plus_plus": {},
        "reinforce_plus_plus_baseline": {},
    }
    result: dict[str, Any] = {}
    for name, settings in outcome.items():
        estimator = core_algos.get_adv_estimator_fn(name.removesuffix("_no_std"))
        advantages, _ = estimator(
            token_level_rewards=rewards.clone(), response_mask=mask, index=index, config=config, **settings
        )
        result[name] = advantages.tolist()
    values = inputs.tensor("ref_logp")
    advantages, returns = core_algos.compute_gae_advantage_return(rewards, values, mask, GAMMA, LAM)
    result["gae"], result["gae_returns"] = advantages.tolist(), returns.tolist()
    return result


def oracle_value_loss(inputs: Inputs) -> tuple[float, list[list[float]]]:
    """verl's clipped value loss (token-mean) with logp, old_logp, ref_logp as values, old values, returns."""
    values = inputs.tensor("logp").requires_grad_()
    loss, _ = core_algos.compute_value_loss(
        vpreds=values,
        returns=inputs.tensor("ref_logp"),
        values=inputs.tensor("old_logp"),
        response_mask=inputs.tensor("mask"),
        cliprange_value=VALUE_CLIP,
    )
    loss.backward()
    assert values.grad is not None
    return loss.item(), values.grad.tolist()
