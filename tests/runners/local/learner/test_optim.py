"""The optimizer: masters, clipping, schedules, refusal of gradients that are not finite, state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from plugym.errors import BadInput, RunStopped
from plugym_runners.local.optim import Optimizer, OptimizerConfig, learning_rate


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    torch.manual_seed(0)
    return {
        "matrix": nn.Parameter(torch.randn(3, 4).to(dtype)),
        "vector": nn.Parameter(torch.randn(3).to(dtype)),
    }


def backward(params: dict[str, nn.Parameter], seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params.values():
        weights = torch.randn(p.shape, generator=generator).to(p.dtype)
        (p * weights * scale).sum().backward()


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("cosine", [0.5, 1.0, 1.0, 0.8535533905932737, 0.5, 0.1464466094067262, 0.0, 0.0]),
    ],
)
def test_schedules(schedule: Any, expected: list[float]) -> None:
    config = OptimizerConfig(lr=1.0, schedule=schedule, warmup_steps=2, total_steps=6)
    assert [learning_rate(config, done) for done in range(8)] == pytest.approx(expected, abs=1e-12)


def test_a_schedule_needs_its_length() -> None:
    with pytest.raises(BadInput, match="total_steps"):
        Optimizer(parameters().items(), OptimizerConfig(schedule="cosine", warmup_steps=3))


def test_it_is_adamw_with_clipping_and_decay_of_matrices() -> None:
    config = OptimizerConfig(lr=0.1, weight_decay=0.2, betas=(0.8, 0.9), eps=1e-6, grad_clip=0.5)
    ours, theirs = parameters(), parameters()
    optimizer = Optimizer(ours.items(), config)
    reference = torch.optim.AdamW(
        [{"params": [theirs["matrix"]]}, {"params": [theirs["vector"]], "weight_decay": 0.0}],
        lr=0.1,
        weight_decay=0.2,
        betas=(0.8, 0.9),
        eps=1e-6,
    )
    for step in range(4):
        backward(ours, step)
        backward(theirs, step)
        expected = nn.utils.clip_grad_norm_(theirs.values(), 0.5)
        reference.step()
        reference.zero_grad()
        assert optimizer.step() == pytest.approx(float(expected), rel=1e-6)
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, theirs[name], rtol=0, atol=1e-6)
        assert parameter.grad is None
    assert optimizer.updates == 4


def test_no_clipping_when_it_is_off() -> None:
    ours = parameters()
    optimizer = Optimizer(ours.items(), OptimizerConfig(lr=1.0, grad_clip=0.0, betas=(0.0, 0.0), eps=1e9))
    before = ours["vector"].detach().clone()
    backward(ours, 0, scale=1e6)
    gradient = ours["vector"].grad
    assert gradient is not None
    optimizer.step()
    # With such an eps the step is the gradient itself, divided by eps plus its size.
    torch.testing.assert_close(before - ours["vector"], gradient / (gradient.abs() + 1e9))


def test_small_updates_of_bfloat16_weights_add_up() -> None:
    ours = {"w": nn.Parameter(torch.ones(2, 2, dtype=torch.bfloat16))}
    optimizer = Optimizer(ours.items(), OptimizerConfig(lr=1e-4))
    for _ in range(100):
        ours["w"].sum().backward()
        assert ours["w"].grad is None
        optimizer.step()
    # Each update of 1e-4 is far below the spacing of bfloat16 at 1 (0.0078).
    torch.testing.assert_close(ours["w"].float(), torch.full((2, 2), 0.99), rtol=0, atol=0.004)
    assert float(optimizer.state_dict()["w"]["master"][0, 0]) == pytest.approx(0.99, abs=1e-4)


def test_micro_batches_add_up_in_float32() -> None:
    ours = {"w": nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))}
    optimizer = Optimizer(ours.items(), OptimizerConfig(grad_clip=0.0))
    for _ in range(300):
        ours["w"].sum().backward()
    # In bfloat16 the sum would have stopped at 256.
    assert optimizer.step() == 300.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_changes_nothing(dtype: torch.dtype, bad: float) -> None:
    ours = parameters(dtype)
    optimizer = Optimizer(ours.items(), OptimizerConfig(lr=0.1))
    backward(ours, 0)
    optimizer.step()
    before = {name: p.detach().clone() for name, p in ours.items()}
    state = {n: {k: v.clone() for k, v in entry.items()} for n, entry in optimizer.state_dict().items()}
    (ours["vector"] * bad).sum().backward()
    backward({"matrix": ours["matrix"]}, 1)
    with pytest.raises(RunStopped, match=r"not finite \(vector\) at update 1"):
        optimizer.step()
    for name, parameter in ours.items():
        assert torch.equal(parameter, before[name])
        assert all(torch.equal(value, state[name][key]) for key, value in optimizer.state_dict()[name].items())
    backward(ours, 2)
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in ours.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_continues_bit_by_bit(dtype: torch.dtype, tmp_path: Any) -> None:
    straight, resumed = parameters(dtype), parameters(dtype)
    config = OptimizerConfig(lr=0.01)
    one, two = Optimizer(straight.items(), config), Optimizer(resumed.items(), config)
    for step in range(2):
        backward(straight, step)
        one.step()
    torch.save(one.state_dict(), tmp_path / "o.pt")
    with torch.no_grad():
        for name, parameter in resumed.items():
            parameter.copy_(straight[name])
    two.load_state_dict(torch.load(tmp_path / "o.pt", weights_only=True))
    for step in range(2, 4):
        for params, optimizer in ((straight, one), (resumed, two)):
            backward(params, step)
            optimizer.step()
    assert all(torch.equal(straight[name], resumed[name]) for name in straight)


def test_state_of_other_parameters_is_refused() -> None:
    optimizer = Optimizer(parameters().items(), OptimizerConfig())
    with pytest.raises(BadInput, match="other parameters"):
        optimizer.load_state_dict({"matrix": {}})


def test_a_parameter_without_gradient_stays() -> None:
    ours = parameters()
    before = ours["vector"].detach().clone()
    optimizer = Optimizer(ours.items(), OptimizerConfig(lr=0.1, weight_decay=0.1))
    ours["matrix"].sum().backward()
    optimizer.step()
    assert torch.equal(ours["vector"], before)
