"""The benchmarks run: one JSON line, right answers, and a peer that is not installed is null with the way to get it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


def line_of(script: str, *arguments: str) -> dict[str, Any]:
    """The only line that a script prints."""
    command = [sys.executable, str(FOLDER / script), "--peer-python", "/nowhere/python", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    result: dict[str, Any] = json.loads(line)
    return result


@pytest.mark.parametrize("ask", ["text", "tokens"])
def test_rollout_overhead(ask: str) -> None:
    result = line_of("rollout_overhead.py", "--episodes", "6", "--latency", "0", "--mode", "tools", "--ask", ask)
    for contender in ("aiohttp", "plugym"):
        assert result[f"{contender}_tools"]["right"] == 6
        assert result[f"{contender}_tools"]["cpu_ms_per_episode"] > 0
    assert result["verifiers_tools"] is result["agentbox_tools"] is None
    assert "pip install -r benchmarks/requirements.txt" in result["missing"]


def test_verifier_speed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="the algebra worker needs the extra `math`")
    monkeypatch.setenv("PLUGYM_SHARED", str(tmp_path))
    result = line_of("verifier_speed.py", "--passes", "1")
    assert result["plugym"]["right"] == result["plugym_algebra"]["right"] == result["cases"]
    assert result["math_verify"] is None


def test_grpo_step() -> None:
    pytest.importorskip("torch", reason="needs the extra `torch`")
    result = line_of("grpo_step.py", "--steps", "2", "--groups", "1", "--tokens", "4")
    assert result["plugym"]["cpu_s_per_step"] > 0
    assert result["trl"] is None
