"""The `Learner` contract: optimizer steps on trajectories with anybody's loss.

A runner implements it. The policy's algorithm uses one, a co-trained reward model is handed another (its own adapter,
its own optimizer), and neither sees a model, an optimizer or a device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from plugym.algorithm import Advantage, Aux, LossOutput, TokenBatch
from plugym.trajectory import FloatArray, TokenStream, Trajectory

LossFunction = Callable[[TokenBatch], LossOutput]


class Learner(ABC):
    """Updates one set of weights."""

    @abstractmethod
    def step(
        self,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Advantage],
        loss: LossFunction,
        *,
        aux: Aux | None = None,
        skip_zero: bool = False,
    ) -> Mapping[str, float]:
        """One optimizer update over a mini-batch, accumulated over micro-batches; returns metrics.

        With `skip_zero` the forward pass of trajectories with zero advantage is left out; their tokens still count in
        every denominator.
        """

    @abstractmethod
    def logprobs(self, streams: Sequence[TokenStream], *, reference: bool = False) -> list[FloatArray]:
        """Per stream float32[T]: log-probs of its trained tokens now (0 elsewhere), or under the starting weights."""

    @abstractmethod
    def values(self, streams: Sequence[TokenStream]) -> list[FloatArray]:
        """Per stream float32[T]: the value head at each trained token (0 elsewhere)."""

    @abstractmethod
    def save(self, path: Path) -> None:
        """Weights, optimizer and random state into the directory `path`."""

    @abstractmethod
    def load(self, path: Path) -> None:
        """Continue from `save`."""
