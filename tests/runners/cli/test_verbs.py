"""The verbs that report: `list`, `show`, `doctor` and `grade`, for people and for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from plugym_runners.cli.doctor import requirements

Flags = tuple[str, ...]


def test_list_knows_every_plugin_from_metadata_alone(cli: Any, install: Any) -> None:
    install("shop-d", {"envs": {"shop": "never_imported:Env"}}, {"never_imported": "raise SystemExit('imported')\n"})
    plugins = cli("list", "--json").document["plugins"]
    (shop,) = [plugin for plugin in plugins if plugin["name"] == "shop"]
    assert (shop["kind"], shop["dist"], shop["version"], shop["target"]) == (
        "envs",
        "shop-d",
        "1.0",
        "never_imported:Env",
    )
    names = {(plugin["kind"], plugin["name"]) for plugin in plugins}
    assert {("envs", "math"), ("rewards", "verifier"), ("algos", "grpo_tcr"), ("hooks", "store")} <= names


@pytest.mark.parametrize("kind", ["env", "envs", "environment"])
def test_list_takes_a_kind(cli: Any, kind: str) -> None:
    result = cli("list", kind)
    assert result.code == 0
    assert {line.split()[0] for line in result.out.splitlines()} == {"KIND", "envs"}


def test_list_imports_no_plugin_and_no_torch() -> None:
    code = (
        "import sys; from plugym_runners.cli.root import run; run(['list']);"
        "heavy = ('torch', 'rich', 'plugym_envs', 'plugym_algos', 'plugym_runners.local');"
        "print([module for module in heavy if module in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_list_check_says_what_is_sound(cli: Any, install: Any) -> None:
    install("shop-e", {"tools": {"till": "till_e:Tool"}}, {"till_e": "print('noise')\nTool = object\n"})
    (plugin,) = [p for p in cli("list", "tools", "--check", "--json").document["plugins"] if p["name"] == "till"]
    assert plugin["broken"] is None


def test_show_lists_settings_with_types_defaults_and_descriptions(cli: Any) -> None:
    (plugin,) = cli("show", "math", "--kind", "env", "--json").document["plugins"]
    assert (plugin["dist"], plugin["target"]) == ("plugym", "plugym_envs.math:MathEnv")
    level = next(setting for setting in plugin["settings"] if setting["name"] == "level")
    assert level["type"].startswith("int >=0")
    assert (level["default"], level["required"]) == (0, False)
    assert level["description"]


def test_show_shows_every_kind_that_has_the_name(cli: Any) -> None:
    out = cli("show", "math").out
    assert "environment math: " in out
    assert "checker math: " in out
    assert "  level " in out


def test_verbs_know_the_plugins_of_a_users_registry(cli: Any, install: Any, tmp_path: Path) -> None:
    install("nothing", {}, {})  # so that the registry of this process is rebuilt afterwards
    (tmp_path / "my_checks_for_test.py").write_text(
        "from plugym_rewards.verifier.checks import ExactCheck\nclass Mine(ExactCheck):\n    'A check.'\n"
    )
    file = tmp_path / "registry.toml"
    file.write_text('[checkers]\nmine = "my_checks_for_test:Mine"\n')
    own = ("--registry", str(file))
    assert "mine" in cli("list", "checkers", *own).out
    assert "case_sensitive" in cli("show", "mine", *own).out
    graded = cli("grade", "--check", "mine", "--gold", "a", "--pred", "a", "--json", *own)
    assert graded.document["verdicts"][0]["correct"]


def test_show_of_a_plugin_without_settings(cli: Any, install: Any) -> None:
    install("shop-f", {"tools": {"till": "till_f:Tool"}}, {"till_f": "Tool = object\n"})
    assert cli("show", "till").out == "tool till: no summary\nfrom shop-f 1.0, till_f:Tool\nno settings\n"


def test_doctor_looks_at_the_machine(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLUGYM_CACHE", str(tmp_path / "not" / "yet"))
    result = cli("doctor", "--json")
    assert result.code == 0
    findings = {finding["name"]: finding for finding in result.document["findings"]}
    assert {"python", "platform", "torch", "extras", "cache", "model tiny", "plugins"} <= set(findings)
    assert findings["cache"] == {"name": "cache", "status": "ok", "detail": str(tmp_path / "not" / "yet")}
    assert not (tmp_path / "not").exists()


def test_doctor_fails_where_the_cache_cannot_be(cli: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PLUGYM_CACHE", str(tmp_path / "file" / "cache"))
    result = cli("doctor")
    assert result.code == 1
    assert "cannot be written: set PLUGYM_CACHE" in result.out


def test_doctor_names_a_broken_plugin_and_goes_on(cli: Any, install: Any) -> None:
    install("shop-g", {"tools": {"till": "till_g:Tool"}}, {"till_g": "import not_there_at_all\n"})
    result = cli("doctor", "--json")
    assert result.code == 0
    (warning,) = [f for f in result.document["findings"] if f["name"] == "tools/till"]
    assert warning["status"] == "warn"
    assert "not_there_at_all" in warning["detail"]


def test_doctor_checks_a_composition_too(cli: Any, fake: Flags) -> None:
    result = cli("doctor", *fake, "--train.ends", "fail", "--json")
    assert result.code == 1
    assert result.document["findings"][-1] == {"name": "reward", "status": "fail", "detail": ""}


def test_requirements_follow_extras_that_include_others() -> None:
    lines = [
        "click>=8.1",
        'torch>=2.7; extra == "torch"',
        "math-verify[antlr]>=0.8; extra == 'math'",
        "plugym[math,torch]; extra == 'local'",
        "plugym[local]; python_version > '3' and extra == 'all'",
    ]
    assert requirements(lines)["all"] == {"torch", "math-verify"}
    assert requirements(lines)["math"] == {"math-verify"}


def test_grade_one_answer(cli: Any) -> None:
    result = cli("grade", "--check", "exact", "--gold", "7", "--pred", "7", "--json")
    assert result.code == 0
    (verdict,) = result.document["verdicts"]
    assert (verdict["correct"], verdict["value"]) == (True, 1.0)
    text = cli("grade", "--check", "exact", "--gold=7", "--pred=-7")
    assert text.out.startswith("wrong  gold '7'  pred '-7'")


def test_grade_hands_settings_to_the_checker(cli: Any) -> None:
    args = ("grade", "--check", "exact", "--gold", "Paris", "--pred", "paris", "--json")
    assert not cli(*args).document["verdicts"][0]["correct"]
    assert cli(*args, "--check.case_sensitive", "false").document["verdicts"][0]["correct"]


def test_grade_a_file_in_order(cli: Any, tmp_path: Path) -> None:
    cases = [{"gold": "a", "pred": "a", "id": 1}, {"gold": 7, "pred": "8"}, {"gold": "é\u2028", "pred": "é\u2028"}]
    file = tmp_path / "cases.jsonl"
    file.write_text("\n\n".join(json.dumps(case, ensure_ascii=False) for case in cases))
    verdicts = cli("grade", "--check", "exact", "--file", str(file), "--json").document["verdicts"]
    assert [verdict["correct"] for verdict in verdicts] == [True, False, True]
    assert [verdict["gold"] for verdict in verdicts] == ["a", "7", "é\u2028"]


def test_grade_math_needs_no_torch(cli: Any) -> None:
    args = [
        sys.executable,
        "-c",
        "import sys; sys.modules['torch'] = None; from plugym_runners.cli import main; main()",
    ]
    args += ["grade", "--check", "math", "--gold", "1/2", "--pred", "0.5", "--json"]
    done = subprocess.run(args, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["verdicts"][0]["correct"]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("", "has no cases"),
        ('{"gold": "1", "pred": "1"}\n{"gold"', "cases.jsonl:2: not JSON"),
        ('{"gold": "1"}', "cases.jsonl:1: no column 'pred'; it has gold"),
        ('["1", "1"]', "cases.jsonl:1: expected an object"),
        ('{"gold": true, "pred": "1"}', "'gold' must be text or a number, got true"),
        ('{"gold": "1", "pred": null}', "'pred' must be text or a number, got null"),
    ],
)
def test_grade_names_the_line_that_cannot_be_used(cli: Any, tmp_path: Path, line: str, part: str) -> None:
    (tmp_path / "cases.jsonl").write_text(line)
    result = cli("grade", "--check", "exact", "--file", str(tmp_path / "cases.jsonl"))
    assert (result.code, result.out) == (2, "")
    assert part in result.err


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (("--check", "exact", "--gold", "7"), "give both --gold and --pred, or --file alone"),
        (("--check", "exact", "--gold", "7", "--pred", "7", "--file", "x"), "give both --gold and --pred"),
        (("--check", "exact", "--file", "absent.jsonl"), "cannot read absent.jsonl"),
        (("--check", "maths", "--gold", "7", "--pred", "7"), "unknown checker 'maths': did you mean 'math'?"),
        (("--check", "exact", "--chek.x", "1", "--gold", "7", "--pred", "7"), "unknown option --chek.x"),
        (("--check", "exact", "--check.x", "1", "--gold", "7", "--pred", "7"), "has no option --check.x"),
        (("--gold", "7", "--pred", "7"), "--check"),
    ],
)
def test_grade_refuses_what_cannot_work(cli: Any, args: Flags, part: str) -> None:
    result = cli("grade", *args)
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 1
    assert part in result.err
