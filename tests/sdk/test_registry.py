"""Discovery: what is known without importing, what an unknown name is answered with, and a user's own registry file.

Collisions, broken and denied plugins: scenarios/test_composite_and_collisions.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from builders import install, user_registry
from pydantic import BaseModel, Field

from plugym import registry as registry_module
from plugym.errors import PluginError
from plugym.registry import KINDS, SINGULAR, Registry, UserRegistry, registry, use_registry, validate_settings

pytestmark = pytest.mark.usefixtures("own_registry")


def test_every_kind_has_a_word_for_one_of_it() -> None:
    assert set(KINDS) == set(SINGULAR)


def test_plugins_are_listed_with_what_the_metadata_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "some-dist", {"envs": {"some_env": "nowhere:Env"}, "unheard_of": {"x": "y:z"}})
    (info,) = [info for info in registry().plugins("envs") if info.name == "some_env"]
    assert (info.kind, info.dist, info.version, info.target) == ("envs", "some-dist", "1.0", "nowhere:Env")
    assert {info.kind for info in registry().plugins()} <= set(KINDS)
    math = registry().find("envs", "math")
    assert math.summary, "the catalogue says what a known plugin is"


def test_a_distribution_found_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder, name in (("one", "Twice-Dist"), ("two", "twice_dist")):
        install(tmp_path / folder, monkeypatch, name, {"envs": {"twice": "nowhere:Env"}})
    assert len([info for info in registry().plugins("envs") if info.name == "twice"]) == 1


def test_unknown_names_get_a_suggestion() -> None:
    with pytest.raises(PluginError, match=r"unknown environment 'maths': did you mean 'math'"):
        registry().find("envs", "maths")
    with pytest.raises(PluginError, match=r"unknown environment 'zzzzzz': known are .*math.*runner list"):
        registry().find("envs", "zzzzzz")


def test_a_known_but_missing_plugin_gets_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = {"distribution": "acme-envs", "extra": "", "summary": "A game", "needs": ["pygame"]}
    catalogue = {"envs": {"tetris": entry, "chess": {**entry, "extra": "chess"}}}
    monkeypatch.setattr(registry_module, "_catalogue", lambda: catalogue)
    with pytest.raises(PluginError) as caught:
        Registry().find("envs", "tetris")
    assert str(caught.value) == "environment 'tetris' is not installed (A game): pip install 'acme-envs'"
    with pytest.raises(PluginError, match=r"pip install 'acme-envs\[chess\]'"):
        Registry().find("envs", "chess")


def test_a_missing_dependency_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it is the dependency that the catalogue speaks of: any other missing module is a broken plugin."""
    points = {"envs": {"tetris": "tetris_mod:Env", "chess": "chess_mod:Env"}}
    install(
        tmp_path,
        monkeypatch,
        "acme-envs",
        points,
        tetris_mod="import not_installed_pygame.font\n",
        chess_mod="import not_installed_other\n",
    )
    entry = {"distribution": "Acme_Envs", "extra": "game", "summary": "A game", "needs": ["not_installed_pygame"]}
    monkeypatch.setattr(registry_module, "_catalogue", lambda: {"envs": {"tetris": entry, "chess": entry}})
    with pytest.raises(PluginError, match=r"^tetris needs 'pip install Acme_Envs\[game\]'"):
        Registry().load("envs", "tetris")
    with pytest.raises(PluginError, match=r"environment 'chess' from acme-envs is broken: ModuleNotFoundError"):
        Registry().load("envs", "chess")


def test_a_users_file_adds_plugins_that_are_not_packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_reward_mod.py").write_text(
        "from plugym.reward import reward\n@reward\ndef short(trajectory): return len(trajectory.final_text) < 5\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_reward_mod", raising=False)
    use_registry(user_registry(tmp_path, '[rewards]\nshort = "my_reward_mod:short"\n'))
    assert registry().find("rewards", "short@local").dist == "local"
    assert type(registry().create("rewards", "short")).__name__ == "short"
    use_registry(None)
    with pytest.raises(PluginError, match=r"unknown reward 'short'"):
        registry().find("rewards", "short")


def test_an_allow_list_still_admits_our_own_and_the_users(tmp_path: Path) -> None:
    user = UserRegistry(allow=("acme",))
    assert [user.admits(dist) for dist in ("acme", "ACME", "plugym", "local", "other")] == [
        True,
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[env]\nx = "m:a"\n', "unknown section 'env'; valid: envs, rewards"),
        ("deny = ", "user-registry.toml"),
        ('deny = "evil-dist"\n', "deny must be a list of names, got 'evil-dist'"),
        ("deny = [1]\n", "deny must hold strings only"),
        ('allow = "acme"\n', "allow must be a list of names"),
        ("envs = 3\n", "envs must be a table, got 3"),
        ("[envs]\nx = 3\n", "envs must hold strings only"),
        ("[pins]\nacme = 1.0\n", "pins must hold strings only"),
    ],
)
def test_slips_in_the_users_file_are_one_clear_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(PluginError) as caught:
        user_registry(tmp_path, text)
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_users_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"cannot read .*none.toml: No such file"):
        UserRegistry.read(tmp_path / "none.toml")


class Options(BaseModel, extra="forbid"):
    level: int = Field(1, ge=0)
    tools: list[str] = Field(default_factory=list)


def test_settings_are_validated_with_the_spelling_of_the_command_line() -> None:
    assert validate_settings(Options, {"level": "3", "tools": "calculator"}).tools == ["calculator"]
    for settings, problem in [
        ({"lvl": 1}, "game has no option --env.lvl; did you mean --env.level? Valid options: --env.level, --env.tools"),
        ({"qqqq": 1}, "game has no option --env.qqqq Valid options:"),
        ({"level": "high"}, "option --env.level of game: Input should be a valid integer"),
        ({"level": -1}, "option --env.level of game: Input should be greater than or equal to 0 (got -1)"),
    ]:
        with pytest.raises(PluginError) as caught:
            validate_settings(Options, settings, prefix="--env.", owner="game")
        assert problem in str(caught.value)


def test_the_registry_of_the_process_is_built_once() -> None:
    use_registry(None)
    assert registry() is registry()
    mine: Any = Registry()
    use_registry(mine)
    assert registry() is mine
