"""The plain copy of a LoRA model: same distributions, refreshed on demand, the original untouched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

peft = pytest.importorskip("peft", reason="needs the extra 'torch'")

from plugym.engine import Completion  # noqa: E402
from plugym.errors import BadInput  # noqa: E402
from plugym_runners.local.hf_engine import HFEngine  # noqa: E402
from plugym_runners.local.merged import MergedCopy  # noqa: E402

from .conftest import Play, llama, prompts, reference, requests, together  # noqa: E402


def lora(**settings: Any) -> Any:
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, lora_alpha=16, lora_dropout=0.5, target_modules="all-linear", **settings
    )
    model = peft.get_peft_model(llama(), config)
    train_a_bit(model, seed=0)
    return model


@torch.no_grad()
def train_a_bit(model: Any, seed: int) -> None:
    torch.manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.normal_(std=0.1)


@pytest.mark.parametrize("mode", ["merged", "live"])
def test_engine_samples_from_the_adapted_model(play: Play, mode: str) -> None:
    model = lora()
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    many = requests(prompts(6, 30), max_tokens=20)

    async def scene(engine: HFEngine) -> list[list[Completion]]:
        first = await together(engine, many)
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        train_a_bit(model, seed=1)
        stale = await together(engine, many)
        await engine.update_weights(1)
        return [first, stale, await together(engine, many)]

    first, stale, fresh = play(scene, model, lora=mode)
    assert model.training
    model.eval()
    again = reference(model, fresh[0].prompt_ids, fresh[0].token_ids)
    np.testing.assert_allclose(fresh[0].logprobs, again, atol=1e-4, rtol=0)
    assert (stale[0].token_ids.tolist() == first[0].token_ids.tolist()) == (mode == "merged")
    assert first[0].token_ids.tolist() != fresh[0].token_ids.tolist()
    train_a_bit(model, seed=0)
    np.testing.assert_allclose(
        first[1].logprobs, reference(model, first[1].prompt_ids, first[1].token_ids), atol=1e-4, rtol=0
    )


def test_the_copy_shares_what_no_adapter_touches() -> None:
    model = lora(modules_to_save=["lm_head"])
    merged = MergedCopy(model)
    base = model.get_base_model()
    assert merged.model.model.embed_tokens.weight is base.model.embed_tokens.weight
    own, original = (m.model.layers[0].self_attn.q_proj for m in (merged.model, base))
    assert own.weight is not original.get_base_layer().weight
    assert not any("lora" in name for name, _ in merged.model.named_parameters())
    with torch.no_grad():
        model.base_model.model.lm_head.modules_to_save["default"].weight.mul_(2)
    ids = torch.from_numpy(prompts(9)[0])[None]
    with torch.no_grad():
        torch.testing.assert_close(merged.model(ids).logits, model.eval()(ids).logits, atol=1e-4, rtol=0)


def test_a_disabled_adapter_is_left_out() -> None:
    model = lora()
    with model.disable_adapter():
        merged = MergedCopy(model)
    ids = torch.from_numpy(prompts(9)[0])[None]
    with torch.no_grad():
        torch.testing.assert_close(merged.model(ids).logits, llama()(ids).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize("settings", [{"use_dora": True}, {"trainable_token_indices": [1, 2]}])
def test_adapters_that_are_no_sum_of_weights_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"engine\.lora = 'live'"):
        MergedCopy(lora(**settings))
