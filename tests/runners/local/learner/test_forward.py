"""The forward pass against the obvious one: full logits, one stream at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from plugym.functional import entropy_from_logits
from plugym.trajectory import Trajectory, stream_of
from plugym_runners.local.forward import SHARING_MODELS, Predictor, can_share, checkpointed
from plugym_runners.local.value_head import ValueHead

Make = Callable[..., Any]


def all_streams(trajectories: list[Trajectory]) -> list[Any]:
    return [stream for trajectory in trajectories for stream in trajectory.streams]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return found


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_and_their_gradient(
    make_llama: Make, naive: Make, trajectories: list[Trajectory], share: bool, temperature: float
) -> None:
    model = make_llama()
    streams = all_streams(trajectories)
    logp = Predictor(model, temperature=temperature, share_prompts=share).predict(streams).logp
    weights = torch.linspace(-1, 1, len(logp), dtype=logp.dtype)
    (logp * weights).sum().backward()
    found = gradients(model)
    expected = torch.cat([naive(model, stream, temperature) for stream in streams])
    (expected * weights).sum().backward()
    torch.testing.assert_close(logp, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(found, gradients(model), rtol=0, atol=1e-12)


def test_entropy_with_and_without_gradient(make_llama: Make, trajectories: list[Trajectory]) -> None:
    model = make_llama()
    streams = all_streams(trajectories)
    predictor = Predictor(model, temperature=0.7)
    metric = predictor.predict(streams, entropy="metric").entropy
    loss = predictor.predict(streams, entropy="loss").entropy
    assert metric is not None
    assert loss is not None
    assert not metric.requires_grad
    assert loss.requires_grad
    expected = []
    for stream in streams:
        logits = model(input_ids=torch.tensor(stream.ids)[None]).logits[0]
        expected.append(entropy_from_logits(logits[torch.tensor(stream.positions) - 1], 0.7))
    torch.testing.assert_close(loss, torch.cat(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(metric, loss.detach(), rtol=0, atol=1e-12)
    assert predictor.predict(streams).entropy is None


def test_values_come_from_the_predicting_position(make_llama: Make, trajectories: list[Trajectory]) -> None:
    model = make_llama()
    head = ValueHead(24, torch.float64)
    streams = all_streams(trajectories)
    predictor = Predictor(model, value_head=head)
    assert not predictor.values(streams).any()
    torch.nn.init.normal_(head.linear.weight)
    expected = [
        head(model.model(input_ids=torch.tensor(s.ids)[None]).last_hidden_state[0, s.positions - 1]) for s in streams
    ]
    torch.testing.assert_close(predictor.values(streams), torch.cat(expected), rtol=0, atol=1e-12)
    torch.testing.assert_close(predictor.predict(streams).values, torch.cat(expected), rtol=0, atol=1e-12)


def test_values_cost_no_logits(make_llama: Make, trajectories: list[Trajectory]) -> None:
    model = make_llama()
    shapes = []
    model.lm_head.register_forward_hook(lambda _, args, output: shapes.append(tuple(output.shape)))
    predictor = Predictor(model, value_head=ValueHead(24, torch.float64))
    predictor.values(all_streams(trajectories))
    assert {shape[1] for shape in shapes} == {0}
    shapes.clear()
    predictor.predict(all_streams(trajectories))
    assert sum(shape[1] for shape in shapes) == sum(t.trained_tokens for t in trajectories)


def test_the_model_is_left_as_it_was(make_llama: Make, trajectories: list[Trajectory]) -> None:
    model = make_llama()
    ids = torch.arange(10)[None]
    before = model(input_ids=ids).logits
    with checkpointed(model, True):
        Predictor(model).predict(all_streams(trajectories))
    after = model(input_ids=ids).logits
    assert torch.equal(before, after)
    assert "forward" not in vars(model.model.layers[0])


def test_soft_caps_and_scales_of_the_model_are_kept(naive: Make, trajectories: list[Trajectory]) -> None:
    """Gemma 2 caps its logits after the output matrix; applying that matrix by hand would miss it."""
    torch.manual_seed(0)
    config = transformers.Gemma2Config(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        final_logit_softcapping=0.05,
    )
    model = transformers.Gemma2ForCausalLM(config).double().eval()
    streams = all_streams(trajectories)
    assert not can_share(model)
    with torch.no_grad():
        logp = Predictor(model).predict(streams).logp
        torch.testing.assert_close(logp, torch.cat([naive(model, s) for s in streams]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("model_type", sorted(SHARING_MODELS))
def test_models_that_share_prompts(model_type: str, naive: Make, trajectories: list[Trajectory]) -> None:
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        sliding_window=None,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    assert can_share(model)
    streams = all_streams(trajectories)
    with torch.no_grad():
        logp = Predictor(model).predict(streams).logp
        torch.testing.assert_close(logp, torch.cat([naive(model, s) for s in streams]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("settings", [{"sliding_window": 8}, {"attn_implementation": "eager"}])
def test_models_that_do_not(settings: dict[str, Any]) -> None:
    config = transformers.MistralConfig(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        **{"sliding_window": None, "attn_implementation": "sdpa"} | settings,
    )
    model = transformers.MistralForCausalLM(config)
    assert not can_share(model)
    assert not Predictor(model).share


def test_rows_longer_than_a_sliding_window(naive: Make, make_stream: Make) -> None:
    """Not shared, but still right: what a layer may see is the model's own business."""
    import numpy as np

    torch.manual_seed(0)
    config = transformers.MistralConfig(
        vocab_size=61,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        sliding_window=8,
    )
    model = transformers.MistralForCausalLM(config).double().eval()
    streams = [make_stream(np.random.default_rng(i), [1, 2, 3], 20 + i) for i in range(2)]
    with torch.no_grad():
        logp = Predictor(model).predict(streams).logp
        torch.testing.assert_close(logp, torch.cat([naive(model, s) for s in streams]), rtol=0, atol=1e-6)


def test_nothing_to_predict(make_llama: Make) -> None:
    predictions = Predictor(make_llama()).predict([stream_of([([1, 2], [], [])])])
    assert predictions.logp.shape == (0,)
