"""TRL's GRPO loss, called alone: no model, no data set, no trainer set-up.

`GRPOTrainer._compute_loss` reads its settings from the trainer and log-probs from one method; a bare
trainer object with those attributes and that method replaced gives the loss of any log-probs. Needs trl,
`pip install -e '.[oracle]'`; written for 1.16, whose attributes these are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import trl
from golden_cases import CLIP_HIGH, CLIP_LOW, MAX_LENGTH, Case, Inputs
from torch import Tensor
from trl import GRPOTrainer

SOURCE = f"trl {trl.__version__}"

# Case name up to the first '+' -> TRL's loss type and level of importance sampling.
_NAMES = {
    "grpo": ("grpo", "token"),
    "bnpo": ("bnpo", "token"),
    "dapo": ("dapo", "token"),
    "dr_grpo": ("dr_grpo", "token"),
    "cispo": ("cispo", "token"),
    "gspo": ("grpo", "sequence"),
}

_BASE = (
    Case("grpo", "seq-mean-token-mean"),
    Case("bnpo", "token-mean"),
    Case("dapo", "token-mean"),
    Case("dr_grpo", "seq-mean-token-sum-norm"),
    Case("cispo", "token-mean", loss="cispo", clip_low=None, clip_high=1.0),
    Case("gspo", "seq-mean-token-mean", ratio="sequence"),
)

CASES = (
    *_BASE,
    *(replace(case, name=f"{case.name}+kl", beta=0.04) for case in _BASE),
    Case("dapo+dual", "token-mean", dual_clip=10.0),
    Case("grpo+dual", "seq-mean-token-mean", dual_clip=3.0),
    Case("dapo+kl+corrected", "token-mean", beta=0.04, kl_times_ratio=True),
)


def _bare_trainer(case: Case, logp: Tensor) -> Any:
    loss_type, level = _NAMES[case.name.split("+")[0]]
    trainer = object.__new__(GRPOTrainer)
    trainer.__dict__.update(
        accelerator=SimpleNamespace(
            num_processes=1,
            reduce=lambda x, reduction=None: x,
            gather=lambda x: x,
            gather_for_metrics=lambda x: x,
            sync_gradients=True,
        ),
        args=SimpleNamespace(delta=case.dual_clip, use_bias_correction_kl=case.kl_times_ratio, steps_per_generation=1),
        model=SimpleNamespace(training=True),
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=case.beta,
        epsilon_low=CLIP_LOW,
        # CISPO's bound is absolute in TRL.
        epsilon_high=1.0 + case.clip_high if case.loss == "cispo" else CLIP_HIGH,
        max_completion_length=MAX_LENGTH,
        current_gradient_accumulation_steps=1,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=False,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list), "eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (logp, torch.zeros_like(logp), None),
    )
    return trainer


def oracle_loss(case: Case, inputs: Inputs, dtype: torch.dtype = torch.float64) -> tuple[float, list[list[float]]]:
    """TRL's loss and its gradient by the log-probs, float[B][T]."""
    logp = inputs.tensor("logp", dtype).requires_grad_()
    tool_mask = inputs.tensor("mask", dtype)
    ids = torch.zeros_like(logp, dtype=torch.long)
    batch = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": torch.ones_like(tool_mask),
        "tool_mask": tool_mask,
        "advantages": inputs.tensor("advantages", dtype),
        "old_per_token_logps": inputs.tensor("old_logp", dtype),
        "ref_per_token_logps": inputs.tensor("ref_logp", dtype),
        "num_items_in_batch": tool_mask.sum(),
    }
    loss = _bare_trainer(case, logp)._compute_loss(None, batch)
    loss.backward()
    assert logp.grad is not None
    return loss.item(), logp.grad.tolist()
