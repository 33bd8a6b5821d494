"""Makes `report_runs` and `chromium` importable; run directories as fixtures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from plugym.store import RunDir
from plugym.trajectory import Purpose

sys.path.insert(0, str(Path(__file__).parent))

from report_runs import CONFIG, STEPS, metrics, scored, task, write_groups, write_tokenizer  # type: ignore[import-not-found]


@pytest.fixture
def empty_run(tmp_path: Path) -> RunDir:
    """A run that has just been started."""
    run = RunDir.create(tmp_path, "demo")
    run.write_config(CONFIG)
    return run


@pytest.fixture
def run(empty_run: RunDir) -> RunDir:
    """A run of 30 steps with episodes of three of them and of two evaluations."""
    for step in range(1, STEPS + 1):
        empty_run.append_metrics(step, metrics(step))
    for step in (1, 15, 30):
        rewards: list[float | None] = [1.0, 0.0, None, 1.0] if step > 1 else [0.0, 0.0, 1.0, 0.0]
        write_groups(empty_run, step, "step", [scored(f"s{step}-{n}", task(step + n), rewards) for n in range(2)])
    for step, reward in ((0, 0.0), (30, 1.0)):
        groups = [scored(f"e{step}-{n}", task(n), [reward], Purpose.EVAL) for n in range(3)]
        write_groups(empty_run, step, "eval", groups)
        empty_run.append_eval(step, {"eval/avg@k": reward, "eval/tasks": 3.0})
    empty_run.write_checkpoint(STEPS, write_tokenizer, keep=1)
    return empty_run


@pytest.fixture
def document_of() -> Callable[[str], dict[str, object]]:
    """The document embedded in a page."""

    def parse(page: str) -> dict[str, object]:
        start = page.index('id="data">') + len('id="data">')
        return json.loads(page[start : page.index("</script>", start)])  # type: ignore[no-any-return]

    return parse
