"""`runner` without a verb: settings from their layers, one document on stdout, and an exit code for every ending."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from plugym_runners.cli.options import read_flags
from plugym_runners.cli.output import emit
from plugym_runners.hooks.console import STDERR

Flags = tuple[str, ...]


def test_the_outcome_is_the_only_line_on_stdout(cli: Any, fake: Flags) -> None:
    result = cli(*fake, "--steps", "3", "--json")
    assert result.code == 0
    assert result.document == {"dir": "runs", "steps": 3, "eval_after": None, "seconds": 0.5}
    assert "noise of python" in result.err
    assert "noise of a library" in result.err


def test_without_json_the_outcome_is_the_last_line_all_the_same(cli: Any, fake: Flags) -> None:
    assert json.loads(cli(*fake, "--steps=0").out.splitlines()[-1])["steps"] == 0


@pytest.mark.parametrize("flag", [(), ("--json",)])
def test_progress_is_quiet_for_programs_only(
    cli: Any, fake: Flags, flag: Flags, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fake_runner  # type: ignore[import-not-found]

    seen: list[bool] = []

    def look(self: Any) -> dict[str, Any]:
        seen.append(STDERR.quiet)
        return {}

    monkeypatch.setattr(fake_runner.FakeRunner, "train", look)
    assert cli(*fake, *flag).code == 0
    assert seen == [bool(flag)]
    assert not STDERR.quiet


@pytest.mark.parametrize(
    ("ends", "code", "line"),
    [
        ("reward", 1, "error: reward 'x' gave nan for trajectory t1"),
        ("bug", 1, "internal error: KeyError: 'oops'; run again with --debug for the traceback"),
        ("interrupt", 130, "interrupted"),
    ],
)
def test_a_failed_run_is_one_line_and_a_code(cli: Any, fake: Flags, ends: str, code: int, line: str) -> None:
    result = cli(*fake, "--train.ends", ends, "--json")
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[2:] == [line]  # after the noise of the runner


def test_debug_shows_the_traceback_too(cli: Any, fake: Flags) -> None:
    result = cli(*fake, "--train.ends", "bug", "--debug")
    assert "Traceback (most recent call last)" in result.err
    assert result.err.splitlines()[-1].startswith("internal error: KeyError")


def test_layers_and_their_origins(cli: Any, fake: Flags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "from-file"\n[train]\nlr = 0.5\n[rollout]\ngroup_size = 3\n[run]\nseed = 5\n')
    monkeypatch.setenv("PLUGYM_RUN__SEED", "6")
    monkeypatch.setenv("PLUGYM_ROLLOUT__GROUP_SIZE", "4")
    composed = ("--recipe", "demo", "--config", str(file), *fake, "--seed", "7", "--train.ends", "reward")
    # The recipe's trainer settings mean nothing to the fake runner.
    recipe = tmp_path / "demo.toml"
    recipe.write_text('model = "from-recipe"\n[env]\nname = "math"\nlevel = 1\n[run]\nsteps = 20\nseed = 1\n')
    monkeypatch.setattr("plugym_runners.cli.options.recipe_path", lambda name: recipe)
    document = cli(*composed, "--print-config", "--json").document
    config, origin = document["config"], document["origin"]
    assert [config["run"][key] for key in ("steps", "seed")] == [20, 7]
    assert (config["model"], config["train"]) == ("from-file", {"lr": 0.5, "ends": "reward"})
    assert config["rollout"]["group_size"] == 4
    expected = {
        "run.steps": "recipe demo",
        "env.level": "recipe demo",
        "model": str(file),
        "train.lr": str(file),
        "rollout.group_size": "environment",
        "run.seed": "flag",
        "train.ends": "flag",
        "rollout.max_turns": "default",
        "reward.verifier.plugin": "flag",
    }
    assert {key: origin[key] for key in expected} == expected

    text = cli(*composed, "--print-config").out
    assert "run.seed = 7  # flag\n" in text
    assert 'run.name = "null"  # default\n' in text
    monkeypatch.delenv("PLUGYM_RUN__SEED")
    monkeypatch.delenv("PLUGYM_ROLLOUT__GROUP_SIZE")
    again = tmp_path / "again.toml"
    again.write_text(text)
    assert cli("--config", str(again), "--print-config", "--json").document["config"] == config
    assert tomllib.loads(text)["run"]["seed"] == 7


def test_a_shipped_recipe_can_be_started_from(cli: Any, fake: Flags) -> None:
    result = cli("--recipe", "demo", "--print-config", "--json")
    assert result.code == 0
    assert result.document["origin"]["algo.name"] == "recipe demo"


def test_dry_run_reports_findings_and_fails_with_them(cli: Any, fake: Flags) -> None:
    good = cli(*fake, "--dry-run", "--json")
    assert good.code == 0
    assert good.document == {
        "ok": True,
        "findings": [
            {"name": "model", "status": "ok", "detail": "fine"},
            {"name": "reward", "status": "skip", "detail": ""},
        ],
    }
    bad = cli(*fake, "--dry-run", "--train.ends", "fail")
    assert bad.code == 1
    assert bad.out == "ok    model   fine\nfail  reward\n"


def test_a_users_registry_adds_plugins_from_files_next_to_it(cli: Any, fake: Flags, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "my_envs_for_test.py").write_text(
        "from plugym_envs.math import MathEnv\nclass Mine(MathEnv):\n    'An environment.'\n"
    )
    (mine / "registry.toml").write_text('[envs]\nmine = "my_envs_for_test:Mine"\n')
    (mine / "run.toml").write_text('env = "mine"\n')
    rest = fake[2:]
    assert cli("--env", "mine", "--registry", str(mine / "registry.toml"), *rest).code == 0
    assert cli("--config", str(mine / "run.toml"), *rest).code == 0
    (mine / "registry.toml").write_text('deny = ["plugym"]\n')
    denied = cli("--config", str(mine / "run.toml"), "--env", "math", *rest)
    assert denied.code == 2
    assert "'plugym', which registry.toml does not allow" in denied.err


def test_help_explains_verbs_and_how_to_see_more(cli: Any) -> None:
    for args in ((), ("-h",), ("--help",)):
        result = cli(*args)
        assert (result.code, result.err) == (0, "")
        for part in ("resume", "eval", "list", "show", "doctor", "grade", "runner --env E --help"):
            assert part in result.out
    for verb in ("resume", "eval", "list", "show", "doctor", "grade"):
        result = cli(verb, "--help")
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith(f"Usage: runner {verb} ")


def test_help_of_a_composition_lists_the_options_of_its_plugins(cli: Any, fake: Flags) -> None:
    result = cli(*fake[:-1], "fake", "--reward", "short=verifier:0.5", "--help")
    assert result.code == 0
    for part in ("--env.level int", "--reward.verifier.check", "--reward.short.check", "--algo.clip_high float >=0"):
        assert part in result.out
    for part in ("--train.lr float >0", "learning rate", "--rollout.group_size int >=1", "--print-config"):
        assert part in result.out


def test_help_says_why_a_plugin_has_no_options(cli: Any, fake: Flags) -> None:
    result = cli("--env", "mth", *fake[2:], "--help")
    assert result.code == 0
    assert "not available:" in result.out
    assert "did you mean 'math'?" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("args", "pairs"),
    [
        (["--env", "math"], [("env", "math")]),
        (["--a.b=1=2", "--c", "-3", "--d", ""], [("a.b", "1=2"), ("c", "-3"), ("d", "")]),
        (["--e="], [("e", "")]),
    ],
)
def test_flags_are_pairs(args: list[str], pairs: list[tuple[str, str]]) -> None:
    assert read_flags(args) == pairs


def test_what_has_no_json_form_is_written_in_plain_types(capsys: pytest.CaptureFixture[str]) -> None:
    import numpy as np

    emit({"a": np.float32(0.5), "b": Path("x"), "c": (1, {2: float("inf")}), "d": None, "e": np.int64(3), "f": True})
    assert json.loads(capsys.readouterr().out) == {
        "a": 0.5, "b": "x", "c": [1, {"2": None}], "d": None, "e": 3, "f": True,
    }  # fmt: skip


def test_control_c_in_a_real_process_is_one_line_and_130() -> None:
    code = (
        "import time; from plugym_runners.cli import root;"
        "root._command = lambda args: (print('ready', flush=True), time.sleep(30));"
        "root.main(['--env', 'math'])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        assert process.stderr.read() == b"interrupted\n"
    assert process.returncode == 130


def test_a_reader_that_goes_away_ends_the_command_quietly() -> None:
    command = f"{sys.executable} -m plugym_runners list --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
