"""`TorchLearner`: optimizer steps on trajectories with anybody's loss, on a CPU or one GPU.

What a step is, in order: which trajectories need a forward pass, micro-batches, predictions, `collate`, the loss, one
update. The forward pass itself is `forward.py`, the update `optim.py`, what is stored `learner_state.py`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from plugym.algorithm import (
    Advantage,
    Aux,
    LossOutput,
    Need,
    TokenBatch,
    collate,
    flatten,
    micro_batches,
    unflatten,
)
from plugym.errors import BadInput, RunStopped
from plugym.functional import mismatch_kl
from plugym.learner import Learner, LossFunction
from plugym.trajectory import FloatArray, TokenStream, Trajectory

from .forward import Predictor, checkpointed, hidden_size, vocabulary_size
from .learner_state import LearnerState, load_tensors, random_state, set_random_state
from .models import LoadedModel, add_lora
from .optim import Optimizer
from .packing import check_trainable
from .settings import LearnerConfig
from .value_head import ValueHead


@dataclass(slots=True)
class _Tally:
    """What micro-batches add up to."""

    loss: float = 0.0
    entropies: list[Tensor] = field(default_factory=list)
    old_logps: list[Tensor] = field(default_factory=list)
    rollout_logps: list[Tensor] = field(default_factory=list)
    reported: Counter[str] = field(default_factory=Counter)

    def add(self, output: LossOutput, batch: TokenBatch) -> None:
        self.loss += output.loss.item()
        self.reported.update(output.metrics)
        self.old_logps.append(batch.old_logp)
        self.rollout_logps.append(batch.rollout_logp)
        if batch.entropy is not None:
            self.entropies.append(batch.entropy.detach())

    def metrics(self) -> dict[str, float]:
        """What the learner measures itself stands, also where the algorithm reports a number by the same name."""
        old, rollout = torch.cat(self.old_logps), torch.cat(self.rollout_logps)
        return {
            **{f"actor/{name}": value for name, value in self.reported.items()},
            "actor/loss": self.loss,
            "actor/entropy": float(torch.cat(self.entropies).mean()),
            "actor/mismatch_kl": float(mismatch_kl(old, rollout)),
            "actor/mismatch_max": float((old - rollout).abs().max()),
        }


class TorchLearner(Learner):
    """Trains `loaded.model` in place: an engine that samples from the same module sees every update at once.

    needs: what the algorithm asks for; `VALUES` adds a value head, `REF_LOGPROBS` with `method = "full"` keeps a frozen
    copy of the starting weights (an adapter is switched off instead), `ENTROPY` makes entropy differentiable.
    temperature: of sampling; log-probs and entropies are those of the distribution that was sampled from.

    Dropout of the model itself is off in every pass, so that log-probs compare with what the engine reported. Nothing
    else may use the model while a method runs. Raises `BadInput` for settings that cannot work.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: LearnerConfig,
        *,
        needs: frozenset[Need] = frozenset(),
        temperature: float = 1.0,
    ) -> None:
        if not temperature > 0:
            raise BadInput(f"temperature {temperature} must be above 0: greedy choices have no log-probs to train on")
        self.config = config
        self._needs = needs
        self._tokenizer = loaded.tokenizer
        reference = None
        if config.method == "lora":
            add_lora(
                loaded,
                rank=config.lora_rank,
                alpha=config.lora_alpha,
                dropout=config.lora_dropout,
                targets=config.lora_targets,
            )
        self.model = cast(Any, loaded.model)
        self.model.eval()
        if config.method == "full":
            if Need.REF_LOGPROBS in needs:
                reference = copy.deepcopy(self.model).requires_grad_(False)
            self.model.requires_grad_(True)
        self._value_head = self._new_value_head() if Need.VALUES in needs else None
        self._predictor = Predictor(
            self.model, temperature=temperature, share_prompts=config.share_prompts, value_head=self._value_head
        )
        self._reference = (
            Predictor(reference, temperature=temperature, share_prompts=config.share_prompts) if reference else None
        )
        self._optimizer = Optimizer(self._trained_parameters(), config)

    @property
    def updates(self) -> int:
        """Optimizer updates so far."""
        return self._optimizer.updates

    def step(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Advantage],
        loss: LossFunction,
        *,
        aux: Aux | None = None,
        skip_zero: bool = False,
    ) -> Mapping[str, float]:
        """One AdamW update; the metrics are means over the tokens that had a forward pass, unless they are counts.

        When nothing is left to train on (no trained token, or `skip_zero` and every advantage 0) there is no update:
        moments and learning rate stay where they are, `actor/zero_grad` is 1, and what a forward pass would have
        measured is absent. Raises `RunStopped` on a loss or gradient that is not finite, with weights and optimizer as
        they were, and `BadInput` for what cannot be trained on.
        """
        if [t.id for t in trajectories] != [a.trajectory_id for a in advantages]:
            raise BadInput("advantages must be those of the trajectories, one each, in the same order")
        for trajectory in trajectories:
            check_trainable(trajectory.streams, vocabulary_size(self.model), f"trajectory {trajectory.id}")
        flat = flatten(trajectories, [a.streams for a in advantages])
        idle = [skip_zero and advantage.is_zero for advantage in advantages]
        # Without a trained token there is nothing to run, but the trajectory counts in `total_trajs`.
        active = [i for i, t in enumerate(trajectories) if t.trained_tokens and not idle[i]]
        metrics = {
            "actor/zero_grad": float(np.mean(flat == 0)) if len(flat) else 1.0,
            "actor/lr": self._optimizer.learning_rate,
            "actor/skipped_trajectories": float(sum(idle)),
        }
        if not active:
            return {**metrics, "actor/loss": 0.0, "actor/grad_norm": 0.0}
        tally = _Tally()
        self._optimizer.clear()
        with checkpointed(self.model, self.config.gradient_checkpointing), self._lora_dropout():
            for part in micro_batches([trajectories[i] for i in active], self.config.micro_batch_tokens):
                chosen = [active[i] for i in part]
                self._accumulate(
                    [trajectories[i] for i in chosen],
                    [advantages[i] for i in chosen],
                    loss,
                    tally,
                    aux=aux,
                    total_tokens=len(flat),
                    total_trajs=len(trajectories),
                )
        return {**metrics, **tally.metrics(), "actor/grad_norm": self._optimizer.step()}

    def logprobs(self, streams: Sequence[TokenStream], *, reference: bool = False) -> list[FloatArray]:
        """See `Learner.logprobs`; at the sampling temperature. Raises `BadInput` for streams without token ids, and
        for `reference` where a full fine-tune kept no copy."""
        predictor, adapter = self._predictor, nullcontext()
        if reference and self.config.method == "lora":
            adapter = self.model.disable_adapter()
        elif reference:
            if self._reference is None:
                raise BadInput("a full fine-tune keeps its starting weights only when the algorithm needs ref_logprobs")
            predictor = self._reference
        with torch.no_grad(), adapter:
            return self._by_stream(streams, [predictor.predict(part).logp for part in self._parts(streams)])

    def values(self, streams: Sequence[TokenStream]) -> list[FloatArray]:
        """See `Learner.values`. Raises `BadInput` when nobody asked for values."""
        if self._value_head is None:
            raise BadInput("there is no value head: the algorithm has to declare Need.VALUES")
        with torch.no_grad():
            return self._by_stream(streams, [self._predictor.values(part) for part in self._parts(streams)])

    def save(self, path: Path) -> None:
        """The adapter (or the whole model) and the tokenizer in Hugging Face layout, the value head, and what
        `learner_state.py` lists."""
        path.mkdir(parents=True, exist_ok=True)
        # PEFT would otherwise look on the hub whether the vocabulary was resized.
        extra = {"save_embedding_layers": False} if self.config.method == "lora" else {}
        self.model.save_pretrained(str(path), **extra)
        self._tokenizer.save_pretrained(str(path))
        if self._value_head is not None:
            self._value_head.save(path)
        torch.save(self._optimizer.state_dict(), path / "optimizer.pt")
        torch.save(random_state(), path / "rng.pt")
        LearnerState(updates=self.updates, shape=self._shape()).save(path)

    def load(self, path: Path) -> None:
        """Continue from `save`, to the same numbers on the same CPU; lr, schedule and the like are this learner's own.

        The learner must have been made from the weights that the saved one started with: they are the reference.
        Raises `BadInput` when `path` is no such checkpoint.
        """
        state = LearnerState.read(path, self._shape())
        if self.config.method == "lora":
            load_adapter(self.model, path)
        else:
            saved = type(self.model).from_pretrained(path, dtype=self.model.dtype)
            self.model.load_state_dict(saved.state_dict())
        if self._value_head is not None:
            self._value_head.restore(path)
        self._optimizer.load_state_dict(load_tensors(path / "optimizer.pt"))
        self._optimizer.updates = state.updates
        set_random_state(load_tensors(path / "rng.pt"))

    def _accumulate(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Advantage],
        loss: LossFunction,
        tally: _Tally,
        *,
        aux: Aux | None,
        total_tokens: int,
        total_trajs: int,
    ) -> None:
        """Forward and backward pass of one micro-batch."""
        streams = [stream for trajectory in trajectories for stream in trajectory.streams]
        predictions = self._predictor.predict(streams, entropy="loss" if Need.ENTROPY in self._needs else "metric")
        batch = collate(
            trajectories,
            advantages,
            logp=predictions.logp,
            aux=aux,
            entropy=predictions.entropy,
            values=predictions.values,
            total_tokens=total_tokens,
            total_trajs=total_trajs,
        )
        output = loss(batch)
        tally.add(output, batch)
        if not torch.isfinite(output.loss):
            self._optimizer.clear()
            raise RunStopped(
                f"the loss is {output.loss.item()} at update {self.updates}, in the micro-batch of "
                f"{', '.join(t.id for t in trajectories[:3])}{', ...' if len(trajectories) > 3 else ''}: nothing was "
                "updated; look for infinite log-probs, rewards or ratios there"
            )
        torch.autograd.backward(output.loss)

    @contextmanager
    def _lora_dropout(self) -> Iterator[None]:
        """Turn on the adapter's own dropout, and no other."""
        dropouts = [m.lora_dropout for m in self.model.modules() if hasattr(m, "lora_dropout")]
        for dropout in dropouts:
            dropout.train()
        try:
            yield
        finally:
            for dropout in dropouts:
                dropout.eval()

    def _new_value_head(self) -> ValueHead:
        return ValueHead(hidden_size(self.model), self.model.dtype).to(self.model.device)

    def _trained_parameters(self) -> list[tuple[str, nn.Parameter]]:
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        if self._value_head is not None:
            named += [(f"value_head.{name}", p) for name, p in self._value_head.named_parameters()]
        return named

    def _shape(self) -> dict[str, Any]:
        """What must agree between a checkpoint and the learner that loads it."""
        shape = {"method": self.config.method, "values": self._value_head is not None}
        if self.config.method == "lora":
            shape |= self.config.model_dump(include={"lora_rank", "lora_alpha", "lora_targets"})
        return shape

    def _parts(self, streams: Sequence[TokenStream]) -> Iterator[list[TokenStream]]:
        """Runs of consecutive streams of at most `micro_batch_tokens`: neighbours often share a prompt."""
        check_trainable(streams, vocabulary_size(self.model))
        part: list[TokenStream] = []
        room = self.config.micro_batch_tokens
        for stream in streams:
            if part and len(stream) > room:
                yield part
                part, room = [], self.config.micro_batch_tokens
            part.append(stream)
            room -= len(stream)
        if part:
            yield part

    def _by_stream(self, streams: Sequence[TokenStream], parts: Sequence[Tensor]) -> list[FloatArray]:
        """Flat predictions to one float32[T] per stream."""
        flat = torch.cat(list(parts)).float().cpu().numpy() if parts else np.zeros(0, dtype=np.float32)
        return list(unflatten([Trajectory("", None, "", streams=tuple(streams))], flat)[0])


def load_adapter(model: Any, path: Path) -> None:
    """Weights of a PEFT adapter into the one `model` has. Raises `BadInput` when they do not fit."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict
    from safetensors.torch import load_file

    file = path / "adapter_model.safetensors"
    if not file.is_file():
        raise BadInput(f"{path} is not a complete checkpoint: it has no {file.name}")
    saved = load_file(file)
    shapes = {name: t.shape for name, t in get_peft_model_state_dict(model, save_embedding_layers=False).items()}
    if {name: t.shape for name, t in saved.items()} != shapes:
        raise BadInput(f"the adapter in {path} belongs to another model: start from the model it was trained on")
    set_peft_model_state_dict(model, saved)
