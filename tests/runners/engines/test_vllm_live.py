"""The `vllm` engine with the real vLLM on a CPU, in the venv that `make vllm-venv` makes."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugym.engine import GenerateRequest, Level, Sampling
from plugym.message import Message
from plugym_runners.engines.vllm import VLLMConfig, VLLMEngine

VENV = Path(os.environ.get("PLUGYM_VLLM_VENV", Path(__file__).resolve().parents[3] / ".venv" / "vllm"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (VENV / "bin" / "vllm").exists(), reason=f"no vLLM in {VENV}: make vllm-venv"),
]
ASK = GenerateRequest(
    messages=(Message("user", "What is the capital of France?"),), sampling=Sampling(max_tokens=12, temperature=0.0)
)


@pytest.fixture(scope="module")
def smollm2() -> Any:
    models = pytest.importorskip("plugym_runners.local.models", reason="needs the extra 'torch'")
    if not models.resolve_model("smollm2").ready:
        pytest.skip("smollm2 is not in the cache: python -m plugym_runners.local.prepare smollm2")
    return models.load_model("smollm2")


async def learners_logprobs(loaded: Any, completion: Any) -> Any:
    """Log-probs of the sampled tokens in a plain forward pass."""
    import torch

    ids = torch.from_numpy(np.concatenate([completion.prompt_ids, completion.token_ids]))[None]
    with torch.no_grad():
        logp = torch.log_softmax(loaded.model(input_ids=ids).logits[0].float(), dim=-1)
    start = len(completion.prompt_ids)
    return logp[start - 1 : -1].gather(1, ids[0, start:, None])[:, 0].numpy()


@pytest.mark.timeout(900)
def test_exact_tokens_new_adapter_new_weights(smollm2: Any, tmp_path: Path) -> None:
    config = VLLMConfig(
        command=[str(VENV / "bin" / "vllm"), "serve"],
        dtype="float32",
        max_context=512,
        args=["--enforce-eager", "--max-num-seqs", "32"],
        env={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        start_timeout=800,
    )

    async def go() -> None:
        from plugym_runners.local.models import add_lora

        engine = VLLMEngine(config)
        engine.bind(smollm2)
        await engine.open()
        try:
            assert engine.capabilities.level is Level.TOKENS
            assert engine.capabilities.choices
            assert engine.capabilities.max_context == 512
            base = await engine.generate(ASK)
            assert "Paris" in base.text
            np.testing.assert_allclose(base.logprobs, await learners_logprobs(smollm2, base), atol=1e-2)
            scored = await engine.generate(dataclasses.replace(ASK, choices=("Paris", "Rome")))
            assert scored.choice_logprobs is not None

            smollm2.model.save_pretrained(str(tmp_path / "whole"))
            adapted = add_lora(smollm2, rank=16, alpha=32.0, dropout=0.0)
            for name, weight in adapted.named_parameters():
                if "lora_B" in name:
                    weight.data.fill_(0.02)
            await engine.update_weights(1)
            changed = await engine.generate(ASK)
            assert changed.policy_version == 1
            np.testing.assert_allclose(changed.logprobs, await learners_logprobs(smollm2, changed), atol=1e-2)
            assert not np.array_equal(changed.logprobs, base.logprobs)

            await engine.update_weights(2, tmp_path / "whole")
            again = await engine.generate(ASK)
            assert (again.policy_version, again.text) == (2, base.text)
        finally:
            await engine.close()

    asyncio.run(go())
