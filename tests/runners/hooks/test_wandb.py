"""The W&B hook in offline mode: what it would send is in the run directory, and no secret is among it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from plugym.config import Layers
from plugym.errors import PluginError
from plugym.hooks import Hooks
from plugym.runner import RunInfo
from plugym_runners.hooks.wandb import WandbHook, without_private

SECRET = "sk-do-not-send-me"


@pytest.fixture
def info(tmp_path: Path) -> RunInfo:
    layers = Layers()
    engine = {"name": "openai", "headers": {"X-Api-Key": SECRET}, "api_key": SECRET, "max_context": 4096}
    layers.add({"env": "math", "reward": "verifier", "algo": "grpo", "engine": engine}, "test")
    return RunInfo(tmp_path, layers.spec())


def test_a_run_is_written_offline_and_resumed_under_the_same_id(info: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra `wandb`")
    for name, value in {"WANDB_MODE": "offline", "WANDB_API_KEY": SECRET, "WANDB_ERROR_REPORTING": "false"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(info.dir))
    for outcome in ("failed", "done"):
        hooks = Hooks({"wandb": WandbHook()})
        hooks.call("plugym_run_start", run=info)
        hooks.call("plugym_eval_end", step=0, metrics={"eval/avg@k": 0.25})
        hooks.call("plugym_step_end", step=1, metrics={"reward/mean": 0.625, "actor/loss": float("nan")})
        hooks.call("plugym_run_end", run=info, outcome={"status": outcome, "steps": 1})
        assert hooks.switched_off == {}
    files = list((info.dir / "wandb").glob("offline-run-*/run-*.wandb"))
    written = b"".join(path.read_bytes() for path in files)
    run_id = (info.dir / "wandb" / "run-id").read_text()
    assert {path.stem for path in files} == {f"run-{run_id}"}
    for expected in (b"eval/avg@k", b"0.25", b"reward/mean", b"0.625", b"max_context", b"(left out)", b"grpo"):
        assert expected in written, expected
    assert b"actor/loss" not in written
    everything = b"".join(path.read_bytes() for path in info.dir.rglob("*") if path.is_file())
    assert SECRET.encode() not in everything


def test_without_wandb_it_says_what_to_install(info: RunInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(PluginError, match=r"pip install plugym\[wandb\]"):
        WandbHook().plugym_run_start(run=info)


@pytest.mark.parametrize("name", ["api_key", "KEY", "client_secret", "password", "headers", "access_token"])
def test_what_may_be_a_secret_is_left_out_at_any_depth(name: str) -> None:
    settings: dict[str, Any] = {"a": [{"b": {name: SECRET, "keys": 1}}], "api_key_env": "MY_KEY"}
    assert without_private(settings) == {"a": [{"b": {name: "(left out)", "keys": 1}}], "api_key_env": "MY_KEY"}
