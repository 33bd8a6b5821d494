"""Bad input is found before the run: one clear line that says the fix, exit code 2, nothing written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import plugym.registry

Flags = tuple[str, ...]
RUN = ("--env", "math", "--reward", "verifier", "--algo", "grpo", "--model", "tiny")


def refused(cli: Any, *args: str) -> str:
    """The one line a refused command line leaves."""
    result = cli(*args)
    assert result.code == 2
    assert result.out == ""
    assert os.listdir() == []
    (line,) = result.err.splitlines()
    assert line.startswith("error: ")
    return str(line.removeprefix("error: "))


def overridden(*args: str) -> Flags:
    """The flags of a run that works, except for what `args` say: an option may be given once only."""
    pairs = zip(RUN[::2], RUN[1::2], strict=True)
    return (*(part for pair in pairs if pair[0] not in args for part in pair), *args)


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (("--modle", "tiny"), ["unknown option --modle; did you mean --model?", "Valid options: --model, --env"]),
        (("--stpes", "3"), ["did you mean --steps?"]),
        (("--dryrun", "true"), ["did you mean --dry-run?"]),
        (("--group_size", "3"), ["did you mean --group-size?"]),
        (("--wandb.project", "x"), ["unknown option --wandb.project. Valid options:"]),
        (("--rollout.grop_size", "3"), ["unknown option --rollout.grop_size: did you mean 'group_size'?", "max_turns"]),
        (("--env.levle", "3"), ["math has no option --env.levle; did you mean --env.level?", "Valid options: --env."]),
        (("--algo.clip_hi", "3"), ["did you mean --algo.clip_high?"]),
        (("--train.lr_", "3"), ["did you mean --train.lr?"]),
        (("--reward.verifier.chek", "math"), ["did you mean --reward.verifier.check?"]),
        (("--reward.judge.model", "x"), ["no such reward: chosen are verifier"]),
        (("--env.level", "high"), ["option --env.level of math", "valid integer", "got 'high'"]),
        (("--steps", "-1"), ["option --run.steps", "greater than or equal to 0"]),
        (("--backend.lr", "1"), ["unknown option --backend.lr: a runner's options are --train.*"]),
        (("--train.lr",), ["option --train.lr needs a value; yes-or-no options too: --train.lr true"]),
        (("--eval.before", "--steps", "3"), ["option --eval.before needs a value"]),
        (("stray",), ["unexpected argument 'stray'", "a verb comes first"]),
        (("-x",), ["unexpected argument '-x'"]),
        (("--env", "mth"), ["unknown environment 'mth': did you mean 'math'?"]),
        (("--algo", "gpro"), ["unknown algorithm 'gpro': did you mean 'grpo'?"]),
        (("--backend", "locl"), ["unknown runner 'locl': did you mean 'local'?"]),
        (("--hooks", "consol", "--hooks", "store"), ["unknown hook 'consol': did you mean 'console'?"]),
        (("--recipe", "dmeo"), ["unknown recipe 'dmeo'; did you mean 'demo'?"]),
        (("--config", "absent.toml"), ["cannot read absent.toml"]),
        (("--registry", "absent.toml"), ["cannot read absent.toml"]),
        (("--config",), ["--config", "requires an argument"]),
        (("--env.data", "absent.jsonl"), ["absent.jsonl"]),
        (("--model", "tinny"), ["did you mean 'tiny'?"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_run_that_cannot_work(cli: Any, args: Flags, parts: list[str]) -> None:
    pytest.importorskip("torch", reason="needs the extra 'torch'")
    line = refused(cli, *overridden(*args))
    for part in parts:
        assert part in line


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--env", "math", "--reward", "verifier"), "choose one with --algo NAME"),
        (("--env", "math", "--algo", "grpo"), "choose a reward with --reward NAME"),
        (("lst",), "unknown verb 'lst'; did you mean 'list'? Verbs: resume, eval, "),
        (("sing",), "unknown verb 'sing'. Verbs: resume, eval, "),
        (("list", "envz"), "unknown kind of plugin 'envz': choose one of envs, rewards"),
        (("list", "--jsn"), "--jsn"),
        (("show", "mth"), "unknown plugin 'mth': did you mean 'math'?"),
        (("show", "math", "--kind", "algos"), "unknown algorithm 'math'"),
        (("doctor", "--modle", "tiny"), "unknown option --modle; did you mean --model?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_cannot_work(cli: Any, args: Flags, part: str) -> None:
    assert part in refused(cli, *args)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "empty"),
        (b'{"question": "1+1?", "answer": "2"}\n{"question": \n', ":2"),
        (b'{"text": "1+1?"}\n', "question"),
    ],
    ids=["empty", "unparsable row", "missing column"],
)
def test_data_that_cannot_be_used(cli: Any, tmp_path: Path, content: bytes, part: str) -> None:
    pytest.importorskip("torch", reason="needs the extra 'torch'")
    (tmp_path / "data.jsonl").write_bytes(content)
    assert part in refused(cli, *RUN, "--env.data", str(tmp_path / "data.jsonl"))


def test_a_run_file_that_is_no_toml(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("env = \n")
    assert "run.toml is not valid TOML" in refused(cli, "--config", str(tmp_path / "run.toml"))


def test_an_environment_variable_that_fits_nothing(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLUGYM_MODLE", "tiny")
    assert "environment variable PLUGYM_MODLE fits no setting" in refused(cli, *RUN)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue that knows a plugin which is not installed."""
    entry: Mapping[str, Any] = {"distribution": "plugym-shop", "extra": "web", "summary": "A web shop"}
    monkeypatch.setattr(plugym.registry, "_catalogue", lambda: {"envs": {"shop": entry}})


@pytest.mark.usefixtures("shop")
def test_a_plugin_that_is_known_but_not_installed_comes_with_its_pip_command(cli: Any) -> None:
    line = refused(cli, "--env", "shop", *RUN[2:])
    assert "environment 'shop' is not installed (A web shop)" in line
    assert "pip install 'plugym-shop[web]'" in line


def test_two_plugins_with_one_name_want_the_qualified_one(cli: Any, install: Any, fake: Flags) -> None:
    env = "from plugym_envs.math import MathEnv as Env\n"
    install("shop-a", {"envs": {"shop": "shop_a:Env"}}, {"shop_a": env})
    install("shop-b", {"envs": {"shop": "shop_b:Env"}}, {"shop_b": env})
    line = refused(cli, "--env", "shop", *fake[2:])
    assert "plugins are called 'shop' (environment): choose shop@shop-a or shop@shop-b" in line
    assert cli("--env", "shop@shop-b", *fake[2:]).code == 0
    listed = cli("list", "envs").out
    assert listed.count("[claimed twice: say shop@shop-") == 2


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import not_there_at_all\n", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise RuntimeError('bad day')\n", "RuntimeError: bad day"),
        ("def broken(:\n", "SyntaxError"),
        ("Other = 1\n", "AttributeError"),
    ],
)
def test_a_broken_plugin_is_an_error_only_when_used(
    cli: Any, install: Any, fake: Flags, source: str, problem: str
) -> None:
    install("shop-c", {"envs": {"shop": "shop_c:Env"}}, {"shop_c": source})
    assert cli(*fake).code == 0
    line = refused(cli, "--env", "shop", *fake[2:])
    assert line.startswith("environment 'shop' from shop-c is broken")
    assert problem in line
    assert cli("list").err == ""
    checked = cli("list", "envs", "--check")
    assert checked.code == 0
    assert problem in checked.err
    assert "[broken]" in next(row for row in checked.out.splitlines() if "shop-c" in row)
    shown = cli("show", "shop")
    assert (shown.code, "from shop-c 1.0, shop_c:Env" in shown.out) == (0, True)
    assert problem in shown.err
