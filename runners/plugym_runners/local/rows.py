"""What the in-process engine asks of its decoder: rows to complete, answers to score. Plain data, no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from plugym.engine import Finish, Sampling
from plugym.trajectory import IntArray


@dataclass(slots=True, eq=False)
class Row:
    """One completion in the making: `budget` tokens at most. `abandoned` may be set by any thread at any time."""

    prompt: IntArray
    sampling: Sampling
    seed: int
    session: str
    budget: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish = "length"
    abandoned: bool = False


@dataclass(slots=True, eq=False)
class Answers:
    """Fixed continuations of one prompt, to be given log-probs."""

    prompt: IntArray
    answers: tuple[IntArray, ...]
    sampling: Sampling
