"""The optimizer of the local learner: AdamW on float32 masters, gradient clipping, the learning-rate schedule.

Its state is kept by parameter name, so that a checkpoint survives a different order of parameters and holds nothing but
tensors and numbers. What the gradients are of is decided in `learner.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from plugym.errors import BadInput, RunStopped

from .settings import OptimizerConfig


def learning_rate(config: OptimizerConfig, updates: int) -> float:
    """The rate of the next update after `updates` of them.

    Linear warm-up over `warmup_steps`, then constant, `lr (1 + cos(pi x)) / 2` (Loshchilov and Hutter 2017, arXiv
    1608.03983, equation 5) or `lr (1 - x)`, where x is the share done of the updates that follow the warm-up.

    >>> config = OptimizerConfig(lr=1.0, schedule="linear", warmup_steps=2, total_steps=6)
    >>> [learning_rate(config, done) for done in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if updates < config.warmup_steps:
        return config.lr * (updates + 1) / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    if config.total_steps is None:
        raise BadInput(f"schedule {config.schedule!r} needs total_steps, the number of updates of the run")
    share = min(1.0, (updates - config.warmup_steps) / max(1, config.total_steps - config.warmup_steps))
    return config.lr * (0.5 * (1.0 + math.cos(math.pi * share)) if config.schedule == "cosine" else 1.0 - share)


class Optimizer:
    """AdamW (Loshchilov and Hutter 2019, arXiv 1711.05101) over named parameters.

    A parameter narrower than float32 has a float32 master: gradients of all micro-batches add up there, the update
    happens there, and the parameter is its rounded copy. Otherwise an update below one part in 256 of a bfloat16
    weight would be lost.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], config: OptimizerConfig) -> None:
        self.config = config
        self.updates = 0
        self._parameters = dict(parameters)
        self._masters = {name: _master(parameter) for name, parameter in self._parameters.items()}
        matrices = [p for p in self._masters.values() if p.ndim > 1]
        vectors = [p for p in self._masters.values() if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        # A schedule without its length fails here, not after the first rollout.
        learning_rate(config, config.warmup_steps)

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return learning_rate(self.config, self.updates)

    def clear(self) -> None:
        """Forget all gradients."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self._masters[name].grad = None

    def step(self) -> float:
        """Clip, update, and return the norm of the gradient before clipping.

        Raises `RunStopped`, with weights and moments untouched, when a gradient is not finite.
        """
        gradients = {name: p.grad for name, p in self._masters.items() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm(gradients.values())
        if not torch.isfinite(norm):
            culprits = [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]
            self.clear()
            raise RunStopped(
                f"the gradient is not finite ({culprits[0] if culprits else 'its norm overflows'}"
                f"{f' and {len(culprits) - 1} more' if len(culprits) > 1 else ''}) at update {self.updates}: "
                "it was not applied; lower lr, or look for extreme log-prob ratios"
            )
        if self.config.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self._masters.values(), self.config.grad_clip, norm)
        for group in self._adamw.param_groups:
            group["lr"] = self.learning_rate
        self._adamw.step()
        self._copy_back()
        self.updates += 1
        self.clear()
        return float(norm)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Moments and masters by parameter name; `updates` and what the config says are not part of it."""
        state: dict[str, dict[str, Tensor]] = {}
        for name, master in self._masters.items():
            state[name] = dict(self._adamw.state.get(master, {}))
            if master is not self._parameters[name]:
                state[name]["master"] = master.detach()
        return state

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Continue from `state_dict`, after the parameters themselves were loaded.

        Raises `BadInput` when the state is that of other parameters.
        """
        if state.keys() != self._masters.keys():
            names = ", ".join(sorted(state.keys() ^ self._masters.keys())[:3])
            raise BadInput(f"the optimizer state belongs to other parameters ({names}, ...): train the same ones")
        for name, master in self._masters.items():
            moments = dict(state[name])
            master.copy_(moments.pop("master", self._parameters[name]))
            self._adamw.state.pop(master, None)
            if moments:
                self._adamw.state[master] = {key: value.to(master.device) for key, value in moments.items()}
        self.clear()

    @torch.no_grad()
    def _copy_back(self) -> None:
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:
                parameter.copy_(self._masters[name])


def _master(parameter: nn.Parameter) -> nn.Parameter:
    """The parameter itself, or a float32 copy to which its gradients move as soon as they are complete."""
    if torch.promote_types(parameter.dtype, torch.float32) == parameter.dtype:
        return parameter
    master = nn.Parameter(parameter.detach().float())

    def move(narrow: Tensor) -> None:
        gradient, narrow.grad = narrow.grad, None
        if gradient is not None:
            master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)

    parameter.register_post_accumulate_grad_hook(move)  # type: ignore[no-untyped-call]
    return master
