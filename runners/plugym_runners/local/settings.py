"""The `[train]` table of the local runner. No torch here: a slip in a setting is answered at once."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field


class OptimizerConfig(BaseModel, extra="forbid"):
    """Settings of AdamW and of its learning-rate schedule."""

    lr: float = Field(1e-4, gt=0, description="peak learning rate")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay of matrices; vectors have none")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay rates of AdamW's two moments, in [0, 1)")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    grad_clip: float = Field(1.0, ge=0, description="largest norm of the whole gradient; 0 = no limit")
    warmup_steps: int = Field(0, ge=0, description="updates over which the learning rate rises linearly to lr")
    schedule: Literal["constant", "cosine", "linear"] = Field(
        "constant", description="what the learning rate does after the warm-up; the others fall to 0"
    )
    total_steps: int | None = Field(
        None, ge=1, description="updates at which cosine and linear reach 0; the runner knows it"
    )


class LearnerConfig(OptimizerConfig):
    """What is trained, and how."""

    method: Literal["lora", "full"] = Field("lora", description="train an adapter, or every weight")
    lora_rank: int = Field(16, ge=1, description="rank r of the adapter's matrices")
    lora_alpha: float = Field(32.0, gt=0, description="the adapter is scaled by alpha / r")
    lora_dropout: float = Field(0.0, ge=0, lt=1, description="dropout before the adapter, in training steps only")
    lora_targets: str | list[str] = Field(
        "all-linear", description="modules to adapt: 'all-linear' (all but the output matrix) or names of layers"
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the weights as loaded; what is trained is kept in float32 besides"
    )
    micro_batch_tokens: int = Field(
        16384, ge=1, description="context tokens per forward and backward pass; a longer trajectory has its own"
    )
    gradient_checkpointing: bool = Field(
        False, description="recompute activations in the backward pass: less memory, about a third more time"
    )
    share_prompts: bool = Field(
        True, description="compute a prompt that several samples start from once; same numbers up to rounding"
    )


class LocalTrainConfig(LearnerConfig):
    """The `[train]` table of the local runner."""

    device: str = Field("cpu", description="torch device")
    updates: int = Field(1, ge=1, description="optimizer updates per step, each on a share of its groups")
