"""A LoRA model as a plain one: a copy for inference in which each adapter is already added to the weight it adapts.

The training model is only read. The copy shares every tensor that no adapter touches.
"""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from plugym.errors import BadInput


class MergedCopy:
    """`model` computes what `source` (a `PeftModel`) computed when `refresh` was last called, without its detours.

    The merged weight is W0 + scaling * B @ A (Hu et al. 2021, arXiv:2106.09685, section 4.1). Raises `BadInput` for
    adapters whose effect is no such sum.
    """

    def __init__(self, source: Any) -> None:
        base = source.get_base_model()
        shared: dict[int, Any] = {id(tensor): tensor for tensor in chain(base.parameters(), base.buffers())}
        self.model = copy.deepcopy(base, shared)
        self._pairs: list[tuple[LoraLayer, nn.Module]] = []
        for name, layer in base.named_modules():
            if isinstance(layer, BaseTunerLayer):
                plain = copy.deepcopy(_mergeable(name, layer).get_base_layer(), shared)
                plain.weight = nn.Parameter(torch.empty_like(plain.weight), requires_grad=False)
                self.model.set_submodule(name, plain)
                self._pairs.append((layer, plain))
        self.model.eval()
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the adapters as they are now."""
        for layer, plain in self._pairs:
            weight = layer.get_base_layer().weight.float()
            for adapter in layer.active_adapters:
                if adapter in layer.scaling and not layer.disable_adapters:
                    weight = weight + layer.get_delta_weight(adapter)
            plain.weight.copy_(weight)


def _mergeable(name: str, layer: BaseTunerLayer) -> LoraLayer:
    plain = (
        isinstance(layer, LoraLayer)
        and hasattr(layer, "get_delta_weight")
        and not layer.lora_variant
        and not any(layer.lora_bias.values())
        and layer.get_base_layer().weight.is_floating_point()
    )
    if not plain:
        raise BadInput(f"the adapter of {name} cannot be merged into a copy: set engine.lora = 'live'")
    return layer
