"""Fakes for tests of plugins: a tokenizer with a chat template, and a learner that a trainable reward can be handed.

They keep the contracts exactly and do the least that can be checked by hand: one token per character, one weight.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from plugym.algorithm import Advantage, Aux, collate
from plugym.errors import BadInput
from plugym.learner import Learner, LossFunction
from plugym.message import Message, ToolSpec
from plugym.rollout.chat import without_tools
from plugym.rollout.parsers import HermesParser
from plugym.trajectory import FloatArray, TokenStream, Trajectory

START, END = "<|im_start|>", "<|im_end|>"


class CharTokenizer:
    """One token per character, two special tokens, and a template like ChatML.

    `tools=False` is a template without a tools branch: schemas, calls and results go through the same fallback as with
    a real tokenizer. `strip_thinking` leaves the reasoning of earlier turns out when a conversation is rendered again,
    as many reasoning models' templates do; without it reasoning is rendered in `<think>` tags. Surrogates are refused,
    as a real tokenizer would.

    >>> tokenizer = CharTokenizer()
    >>> text = tokenizer.render([Message("user", "hi")], (), generation_prompt=True)
    >>> text
    '<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n'
    >>> tokenizer.decode(tokenizer.encode(text)) == text
    True
    >>> len(tokenizer.encode("hi<|im_end|>"))
    3
    """

    _SPECIAL = (START, END)
    _OFFSET = len(_SPECIAL)

    def __init__(self, *, tools: bool = True, strip_thinking: bool = False) -> None:
        self._tools = tools
        self._strip_thinking = strip_thinking

    @property
    def eos_ids(self) -> Sequence[int]:
        return (self._SPECIAL.index(END),)

    @property
    def supports_tools(self) -> bool:
        return self._tools

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        if any(message.images for message in messages):
            raise BadInput("this model's tokenizer takes text only: the environment sent an image")
        if not self._tools:
            messages, tools = without_tools(messages, tools, HermesParser()), ()
        lines = [f"{START}tools\n{tool.to_json()}{END}\n" for tool in tools]
        lines += [f"{START}{message.role}\n{self._body(message)}{END}\n" for message in messages]
        return "".join(lines) + (f"{START}assistant\n" if generation_prompt else "")

    def _body(self, message: Message) -> str:
        shown = message.reasoning and not self._strip_thinking
        reasoning = f"<think>{message.reasoning}</think>" if shown else ""
        calls = "".join(HermesParser().render_call(c.name, dict(c.arguments)) for c in message.tool_calls)
        return f"{reasoning}{message.text}{calls}"

    def encode(self, text: str) -> list[int]:
        text.encode()  # refuses surrogates
        ids: list[int] = []
        for piece in re.split(f"({'|'.join(map(re.escape, self._SPECIAL))})", text):
            special = piece in self._SPECIAL
            ids += [self._SPECIAL.index(piece)] if special else [ord(char) + self._OFFSET for char in piece]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self._SPECIAL[i] if i < self._OFFSET else chr(i - self._OFFSET) for i in ids)


class FakeLearner(Learner):
    """A learner with one weight: the log-prob of every trained token is `weight`, and so is its value.

    `step` collates its batch like a real one, differentiates the given loss and takes a step of plain gradient descent.
    What it was given is kept in `batches`.
    """

    def __init__(self, weight: float = -1.0, lr: float = 0.1) -> None:
        self.weight = weight
        self.lr = lr
        self.batches: list[tuple[Trajectory, ...]] = []

    def step(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Advantage],
        loss: LossFunction,
        *,
        aux: Aux | None = None,
        skip_zero: bool = False,
    ) -> Mapping[str, float]:
        import torch

        if skip_zero:
            kept = [i for i, advantage in enumerate(advantages) if not advantage.is_zero]
        else:
            kept = list(range(len(trajectories)))
        batch = [trajectories[i] for i in kept]
        total = sum(trajectory.trained_tokens for trajectory in trajectories)
        tokens = sum(trajectory.trained_tokens for trajectory in batch)
        weight = torch.tensor(self.weight, requires_grad=True)
        output = loss(
            collate(
                batch,
                [advantages[i] for i in kept],
                logp=weight.expand(tokens),
                values=weight.expand(tokens),
                aux=aux,
                total_tokens=total,
                total_trajs=len(trajectories),
            )
        )
        (gradient,) = torch.autograd.grad(output.loss, weight)
        self.weight -= self.lr * float(gradient)
        self.batches.append(tuple(batch))
        return {**output.metrics, "loss": output.loss.item(), "grad_norm": abs(float(gradient))}

    def logprobs(self, streams: Sequence[TokenStream], *, reference: bool = False) -> list[FloatArray]:
        return [(stream.loss_mask * self.weight).astype(np.float32) for stream in streams]

    def values(self, streams: Sequence[TokenStream]) -> list[FloatArray]:
        return self.logprobs(streams)

    def save(self, path: Path) -> None:
        (path / "learner.json").write_text(json.dumps({"weight": self.weight}))

    def load(self, path: Path) -> None:
        self.weight = float(json.loads((path / "learner.json").read_text())["weight"])
