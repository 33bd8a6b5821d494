"""The local runner end to end, with the `tiny` model: it trains, writes what it promises, and fails honestly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugym.config import Layers, RunSpec, file_layer, flag_layer
from plugym.errors import BadInput, RewardError
from plugym.registry import Registry, UserRegistry, use_registry, validate_settings
from plugym.reward import RewardProvider, Score
from plugym.trajectory import Group
from plugym_runners.local.runner import LocalRunner


def runner_of(tmp_path: Path, *flags: str, reward: str = "verifier") -> LocalRunner:
    layers = Layers()
    layers.add({"env": "math", "reward": [reward], "algo": "grpo_tcr", "model": "tiny"}, "test")
    layers.add({"rollout": {"tasks_per_step": 2, "group_size": 4, "max_turn_tokens": 8}}, "test")
    layers.add({"run": {"steps": 2, "out": str(tmp_path), "hooks": ["store"]}}, "test")
    pairs = [flag.partition("=") for flag in flags]
    layers.add(flag_layer([(key, value) for key, _, value in pairs]), "flag")
    spec: RunSpec = layers.spec()
    return LocalRunner(spec, validate_settings(LocalRunner.Config, spec.train, prefix="--train."))


def metrics_of(run_dir: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (Path(run_dir) / "metrics.jsonl").read_text().splitlines()]


def test_a_run_writes_its_directory(tmp_path: Path) -> None:
    outcome = runner_of(tmp_path, "eval.after=true", "eval.n_tasks=4").train()
    run_dir = Path(outcome["dir"])
    assert outcome["status"] == "done"
    assert outcome["steps"] == 2
    assert 0.0 <= outcome["eval_after"] <= 1.0
    assert (run_dir / "config.toml").is_file()
    assert (run_dir / "logs" / "attempt-1.log").is_file()
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-000002"]
    stored = sorted(path.name for path in (run_dir / "trajectories").iterdir())
    assert stored == ["eval-000002.jsonl.gz", "step-000001.jsonl.gz", "step-000002.jsonl.gz"]
    lines = metrics_of(outcome["dir"])
    assert [line["step"] for line in lines] == [1, 2]
    for name in ("reward/mean", "groups/zero_variance", "stop/env_done", "tokens/response_mean", "groups/skipped"):
        assert name in lines[0], name


def test_config_toml_gives_the_same_run_again(tmp_path: Path) -> None:
    first = runner_of(tmp_path).train()
    layers = Layers()
    layers.add(file_layer(Path(first["dir"]) / "config.toml"), "file")
    spec = layers.spec()
    again = LocalRunner(spec, validate_settings(LocalRunner.Config, spec.train, prefix="--train.")).train()
    assert again["dir"] != first["dir"]

    def stable(line: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in line.items() if not key.startswith("time")}

    assert [stable(x) for x in metrics_of(first["dir"])] == [stable(x) for x in metrics_of(again["dir"])]


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="missing"):
        runner_of(tmp_path, "env.data=/nowhere/missing.jsonl").train()
    with pytest.raises(BadInput, match="group_size"):
        runner_of(tmp_path, "rollout.group_size=1").train()
    assert list(tmp_path.iterdir()) == []


class BrokenReward(RewardProvider):
    """Gives NaN for the third trajectory it sees."""

    range = (0.0, 1.0)
    seen = 0

    async def score(self, group: Group) -> list[Score]:
        scores = []
        for _ in group.trajectories:
            BrokenReward.seen += 1
            scores.append(Score(float("nan") if BrokenReward.seen > 10 else 0.5))
        return scores


class ConstantReward(RewardProvider):
    async def score(self, group: Group) -> list[Score]:
        return [Score(0.5) for _ in group.trajectories]


@pytest.fixture
def local_rewards() -> Any:
    local = {name: f"{__name__}:{name}" for name in ("BrokenReward", "ConstantReward")}
    use_registry(Registry(UserRegistry(local={"rewards": local})))
    yield
    use_registry(None)


@pytest.mark.usefixtures("local_rewards")
def test_nan_reward_ends_the_run_and_keeps_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BrokenReward, "seen", 0)
    runner = runner_of(tmp_path, "run.checkpoint_every=1", "run.steps=5", reward="BrokenReward")
    with pytest.raises(RewardError, match=r"'BrokenReward'.*train:0000\d\d:math"):
        runner.train()
    (run_dir,) = tmp_path.iterdir()
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["step-000001"]


@pytest.mark.usefixtures("local_rewards")
def test_a_step_without_signal_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outcome = runner_of(tmp_path, "run.steps=1", reward="ConstantReward").train()
    (line,) = metrics_of(outcome["dir"])
    assert line["groups/skipped"] == line["groups/total"] == 2.0
    assert "every group was skipped" in caplog.text


def test_dry_run_checks_everything(tmp_path: Path) -> None:
    findings = {finding.name: finding for finding in runner_of(tmp_path).dry_run()}
    assert {name: f.status for name, f in findings.items()} == {
        "composition": "ok",
        "model": "ok",
        "template": "ok",
        "episode": "ok",
        "reward": "ok",
        "loss": "ok",
    }
    assert "winner 1.0, silent policy 0.0" in findings["reward"].detail
    assert list(tmp_path.iterdir()) == []


def test_tiny_learns_single_digit_sums(tmp_path: Path) -> None:
    outcome = runner_of(
        tmp_path,
        "run.steps=30",
        "rollout.tasks_per_step=8",
        "rollout.group_size=8",
        "train.method=full",
        "train.lr=2e-4",
    ).train()
    rewards = [line["reward/mean"] for line in metrics_of(outcome["dir"])]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.15, rewards
