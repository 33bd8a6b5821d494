"""The value head: one linear map from the hidden state that predicts a token to the value of the state before it.

What it is and how it is stored. Who trains it and on what is `learner.py`; its loss is `plugym.functional.value_loss`.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from plugym.errors import BadInput

FILE = "value_head.safetensors"


class ValueHead(nn.Module):
    """`V = w . h + b`, starting at 0 everywhere: the first advantages are then the plain returns.

    Kept in float32 whatever the model is stored in (float64 for a float64 model).

    >>> ValueHead(4)(torch.ones(2, 4)).tolist()
    [0.0, 0.0]
    """

    def __init__(self, hidden_size: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1, dtype=torch.promote_types(dtype, torch.float32))
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """float[n, H] to float32[n]."""
        value: Tensor = self.linear(hidden.to(self.linear.weight.dtype))
        return value.squeeze(-1)

    def save(self, directory: Path) -> None:
        save_file(self.state_dict(), directory / FILE)

    def restore(self, directory: Path) -> None:
        """Raises `BadInput` when the checkpoint has no value head."""
        path = directory / FILE
        if not path.is_file():
            raise BadInput(f"{directory} holds no value head ({FILE}): it was trained without values")
        self.load_state_dict(load_file(path))
