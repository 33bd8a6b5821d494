"""What a learner leaves on disk besides weights, and the random state of the process.

    learner.json    what was trained and how far (`LearnerState`); checked before anything is loaded
    optimizer.pt    moments and float32 masters by parameter name
    rng.pt          state of torch's, numpy's and Python's global generators

Files ending in .pt are read with `weights_only=True`: tensors, numbers and containers of these, never code.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ValidationError

from plugym.errors import BadInput


class LearnerState(BaseModel, extra="forbid"):
    """`learner.json`. `shape` is what has to be equal for the weights to fit; `updates` is the schedule's position."""

    schema_version: Literal[1] = 1
    updates: int
    shape: dict[str, Any]

    def save(self, directory: Path) -> None:
        (directory / "learner.json").write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, directory: Path, expected: Mapping[str, Any]) -> LearnerState:
        """Raises `BadInput` when there is none, it cannot be read, or its shape is not `expected`."""
        path = directory / "learner.json"
        try:
            state = cls.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise BadInput(f"{directory} is no checkpoint of a local learner: it has no learner.json") from error
        except ValidationError as error:
            raise BadInput(f"{path} cannot be read: {error.errors()[0]['msg']}") from error
        for name, value in expected.items():
            if state.shape.get(name) != value:
                raise BadInput(
                    f"{directory} was saved with {name} = {state.shape.get(name)!r}, this learner has {value!r}: "
                    f"use the same {name}"
                )
        return state


def load_tensors(path: Path) -> Any:
    """The content of a .pt file, on the CPU. Raises `BadInput` when it is missing, damaged or not what it should be."""
    if not path.is_file():
        raise BadInput(f"{path.parent} is not a complete checkpoint: it has no {path.name}")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise BadInput(f"{path} is damaged, or holds more than tensors and numbers: use another checkpoint") from error


def random_state() -> dict[str, Any]:
    """Of the global generators: torch (each GPU too), numpy (the legacy one) and `random`."""
    numpy_state: Any = np.random.get_state()
    name, key, *rest = numpy_state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": [name, key.tolist(), *rest],
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Continue from `random_state`; states of GPUs that this machine lacks are left out."""
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"][: torch.cuda.device_count()])
    name, key, *rest = state["numpy"]
    np.random.set_state((name, np.array(key, dtype=np.uint32), *rest))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
