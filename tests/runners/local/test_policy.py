"""What training leaves can be evaluated: the same weights give the same answers as in the run that made them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from plugym.config import Layers, flag_layer
from plugym.errors import BadInput
from plugym.registry import validate_settings
from plugym.store import RunDir
from plugym_runners.evaluation import Report, run_evaluation
from plugym_runners.local.policy import load_policy
from plugym_runners.local.runner import LocalRunner

PLAYED = {
    "env": "math",
    "reward": "verifier",
    "algo": "grpo",
    "rollout.max_turn_tokens": "8",
    "eval.n_tasks": "12",
    "run.threads": "1",
}
TRAINED = PLAYED | {
    "model": "tiny",
    "rollout.tasks_per_step": "4",
    "rollout.group_size": "4",
    "train.lr": "1e-2",
    "run.steps": "2",
    "run.checkpoint_every": "1",
    "run.hooks": "store",
    "eval.after": "true",
}


def layered(flags: dict[str, str]) -> Any:
    layers = Layers()
    layers.add(flag_layer(list(flags.items())), "flag")
    return layers.spec()


@pytest.fixture(scope="module", params=["lora", "full"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    out = tmp_path_factory.mktemp(request.param)
    spec = layered(TRAINED | {"train.method": request.param, "out": str(out), "name": "trained"})
    LocalRunner(spec, validate_settings(LocalRunner.Config, spec.train, prefix="--train.")).train()
    return out / "trained"


def evaluated(model: Path, out: Path) -> Report:
    return run_evaluation(layered(PLAYED | {"model": str(model), "out": str(out)}), "model", lambda *args: None)


def test_a_run_and_its_checkpoint_answer_as_they_did_in_training(run: Path, tmp_path: Path) -> None:
    after = RunDir(run).read_evals().rows[-1]["eval/avg@k"]
    for model in (run, run / "checkpoints" / "step-000002"):
        report = evaluated(model, tmp_path)
        assert report.summary.avg is not None
        assert report.summary.avg.value == after
        assert report.summary.response_mean is not None
    assert RunDir(run).group_files()[0].name == "eval-000002.jsonl.gz"


def test_an_adapter_finds_its_base_with_and_without_its_run(run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "copied" / "elsewhere"
    shutil.copytree(run / "checkpoints" / "step-000001", alone)
    loaded = load_policy(str(alone))
    assert loaded.max_context > 0
    settings = alone / "adapter_config.json"
    if settings.exists():
        assert loaded.name == str(alone)
        settings.write_text(json.dumps(json.loads(settings.read_text()) | {"base_model_name_or_path": None}))
        with pytest.raises(BadInput, match="names no base model"):
            load_policy(str(alone))
        (alone / "adapter_model.safetensors").write_bytes(b"damaged")
        shutil.copy(run / "checkpoints" / "step-000001" / "adapter_config.json", settings)
        with pytest.raises(BadInput, match=r"the adapter in .* cannot be loaded"):
            load_policy(str(alone))


def test_a_run_without_a_checkpoint_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "config.toml").touch()
    with pytest.raises(BadInput, match="is a run that has no checkpoint yet"):
        load_policy(str(tmp_path))
