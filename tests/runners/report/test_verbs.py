"""`runner report` and `runner diagnose` from the command line: where the answer goes, and the exit code."""

from __future__ import annotations

import json

import pytest

from plugym.store import RunDir
from plugym_runners.cli.root import run as command
from plugym_runners.diagnose import CHECKS


def test_report_says_where_it_is(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["report", str(run.path)]) == 0
    assert capsys.readouterr().out == f"{run.path / 'report.html'}\n"
    assert command(["report", str(run.path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {"report": str(run.path / "report.html"), "bytes": (run.path / "report.html").stat().st_size}


def test_diagnose_names_numbers_and_what_to_change(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["diagnose", str(run.path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    findings = {finding["name"]: finding for finding in document["findings"]}
    assert list(findings) == list(CHECKS)
    assert findings["truncation"]["numbers"]["share"] == pytest.approx(0.3)
    assert "--rollout.max_turn_tokens" in findings["truncation"]["advice"]
    assert findings["reward_part"]["status"] == "skip"


def test_diagnose_prints_a_table(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["diagnose", str(run.path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    assert any(line.startswith("fail  truncation") for line in lines)


def test_a_run_without_metrics_has_nothing_to_fail(empty_run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["diagnose", str(empty_run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]


@pytest.mark.parametrize("verb", ["report", "view", "diagnose"])
def test_a_folder_that_is_no_run_is_bad_input(verb: str, run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert command([verb, str(run.path.parent)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_a_cut_line_is_a_warning(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with run.metrics_path.open("a") as file:
        file.write('{"step"')
    command(["diagnose", str(run.path)])
    assert "the last line is cut" in capsys.readouterr().err
