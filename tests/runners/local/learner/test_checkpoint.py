"""Save and load: training goes on bit by bit, nothing foreign or executable is read."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from plugym import functional as F
from plugym.algorithm import Advantage, LossOutput, Need, TokenBatch, spread
from plugym.errors import BadInput
from plugym.trajectory import Trajectory
from plugym_runners.local.learner_state import random_state, set_random_state

Make = Callable[..., Any]


def loss(batch: TokenBatch) -> LossOutput:
    assert batch.values is not None
    assert batch.returns is not None
    policy = -batch.advantages * (batch.logp - batch.old_logp).exp()
    value = F.value_loss(batch.values, batch.values.detach(), batch.returns)
    return LossOutput((policy + value).sum() / batch.total_tokens)


def train(learner: Any, trajectories: list[Trajectory], steps: int) -> list[dict[str, float]]:
    """Steps whose advantages come from the global generators, so that these have to be restored as well."""
    metrics = []
    for _ in range(steps):
        advantages = [
            Advantage(t.id, spread(t, random.random()).streams, spread(t, float(np.random.rand())).streams)
            for t in trajectories
        ]
        metrics.append(learner.step(trajectories, advantages, loss))
    return metrics


def seed() -> None:
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)


@pytest.mark.parametrize(
    ("method", "dtype", "settings"),
    [
        ("full", torch.float32, {}),
        ("full", torch.bfloat16, {"dtype": "bfloat16"}),
        ("lora", torch.float32, {"lora_dropout": 0.2, "lora_rank": 4}),
        ("lora", torch.bfloat16, {"dtype": "bfloat16", "lora_targets": ["q_proj", "v_proj"]}),
    ],
)
def test_two_and_two_steps_are_four(
    make_learner: Make,
    make_llama: Make,
    trajectories: list[Trajectory],
    tmp_path: Path,
    method: str,
    dtype: torch.dtype,
    settings: dict[str, Any],
) -> None:
    def fresh() -> Any:
        # The library's own norm here, so that the saved model is one it can load.
        return make_learner(
            make_llama(dtype=dtype, own_norm=True),
            needs={Need.VALUES, Need.REF_LOGPROBS},
            method=method,
            lr=0.01,
            schedule="cosine",
            warmup_steps=1,
            total_steps=6,
            micro_batch_tokens=40,
            **settings,
        )

    straight = fresh()
    seed()
    expected = train(straight, trajectories, 4)
    first = fresh()
    seed()
    found = train(first, trajectories, 2)
    first.save(tmp_path / "checkpoint")
    second = fresh()
    train(second, trajectories, 1)  # whatever it was, it is what was saved afterwards
    second.load(tmp_path / "checkpoint")
    assert second.updates == 2
    found += train(second, trajectories, 2)
    assert found == expected
    for (name, parameter), other in zip(straight.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(parameter, other), name
    streams = [s for t in trajectories for s in t.streams]
    for of in (lambda x: x.values(streams), lambda x: x.logprobs(streams, reference=True)):
        assert all(np.array_equal(a, b) for a, b in zip(of(straight), of(second), strict=True))


def test_the_layout_is_the_usual_one(make_learner: Make, make_llama: Make, tmp_path: Path) -> None:
    lora = make_learner(make_llama(own_norm=True), method="lora", needs={Need.VALUES})
    lora.save(tmp_path / "lora")
    assert {path.name for path in (tmp_path / "lora").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
        "tokenizer.json",
        "chat_template.jinja",
        "optimizer.pt",
        "rng.pt",
        "learner.json",
        "value_head.safetensors",
    }
    full = make_learner(make_llama(dtype=torch.float32, own_norm=True))
    full.save(tmp_path / "full")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "full", dtype=torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), full.model.parameters(), strict=True))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "full").encode("3+4")


def test_other_settings_are_refused(make_learner: Make, make_llama: Make, tmp_path: Path) -> None:
    make_learner(method="lora", lora_rank=4).save(tmp_path)
    for other, name in (
        (make_learner(), "method"),
        (make_learner(method="lora", lora_rank=8), "lora_rank"),
        (make_learner(method="lora", lora_rank=4, needs={Need.VALUES}), "values"),
    ):
        with pytest.raises(BadInput, match=f"saved with {name} = "):
            other.load(tmp_path)
    wider = make_learner(make_llama(hidden_size=32), method="lora", lora_rank=4)
    with pytest.raises(BadInput, match="another model"):
        wider.load(tmp_path)


def test_the_learning_rate_is_that_of_the_settings(
    make_learner: Make, trajectories: list[Trajectory], tmp_path: Path
) -> None:
    make_learner(method="lora", lr=0.01).save(tmp_path)
    learner = make_learner(method="lora", lr=0.5)
    learner.load(tmp_path)
    assert learner.step(trajectories, [spread(t, 1.0) for t in trajectories], plain)["actor/lr"] == 0.5


def plain(batch: TokenBatch) -> LossOutput:
    return LossOutput(-batch.logp.sum() / batch.total_tokens)


@pytest.mark.parametrize("name", ["learner.json", "optimizer.pt", "rng.pt", "adapter_model.safetensors"])
def test_an_incomplete_checkpoint(make_learner: Make, tmp_path: Path, name: str) -> None:
    learner = make_learner(method="lora")
    learner.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(BadInput, match=name):
        learner.load(tmp_path)


def test_a_broken_or_newer_learner_json(make_learner: Make, tmp_path: Path) -> None:
    learner = make_learner(method="lora")
    learner.save(tmp_path)
    path = tmp_path / "learner.json"
    state = json.loads(path.read_text())
    for text in ("{", json.dumps({**state, "schema_version": 2})):
        path.write_text(text)
        with pytest.raises(BadInput, match="cannot be read"):
            learner.load(tmp_path)


class Bomb:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("bomb-went-off"),))


@pytest.mark.parametrize("name", ["optimizer.pt", "rng.pt"])
def test_a_pickle_is_not_run(make_learner: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    learner = make_learner(method="lora")
    learner.save(tmp_path)
    torch.save(Bomb(), tmp_path / name)
    with pytest.raises(BadInput, match=f"{name} is damaged, or holds more"):
        learner.load(tmp_path)
    assert not (tmp_path / "bomb-went-off").exists()
    (tmp_path / name).write_bytes(b"PK")
    with pytest.raises(BadInput, match=f"{name} is damaged"):
        learner.load(tmp_path)


def test_random_state_round_trip(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]

    draw()
    torch.save(random_state(), tmp_path / "rng.pt")
    expected = draw()
    draw()
    set_random_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert draw() == expected
