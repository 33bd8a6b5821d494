"""Settings: layers, short forms, provenance, the round trip through TOML, and one clear line for every slip."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.config import (
    ALIASES,
    Layers,
    RolloutSettings,
    RunSpec,
    environment_layer,
    file_layer,
    flag_layer,
    parse_reward,
    to_layer,
)
from plugym.errors import BadInput
from plugym.tomlfile import dump_toml

BASE = {"env": "math", "reward": "verifier", "algo": "grpo"}


def merged(*layers: Mapping[str, Any]) -> Layers:
    """Layers over `BASE`, their origins numbered from 1."""
    result = Layers()
    result.add(BASE, "base")
    for number, layer in enumerate(layers, 1):
        result.add(layer, f"layer {number}")
    return result


def flags(*pairs: str) -> dict[str, Any]:
    return flag_layer([tuple(pair.split("=", 1)) for pair in pairs])  # type: ignore[misc]


# Layers and where values come from


def test_later_layers_win_and_each_value_knows_its_origin() -> None:
    layers = merged(
        {"run": {"steps": 5, "seed": 1}, "env": {"level": 1}},
        environment_layer({"PLUGYM_RUN__SEED": "2", "HOME": "/root"}),
        flags("steps=7", "env.level=3"),
    )
    spec = layers.spec()
    assert (spec.run.steps, spec.run.seed, spec.env.settings) == (7, 2, {"level": "3"})
    assert layers.origin["run.steps"] == "layer 3"
    assert layers.origin["run.seed"] == "layer 2"
    assert layers.origin["env.name"] == "base"
    assert "rollout.group_size" not in layers.origin, "a default has no origin"


def test_another_plugin_drops_the_settings_of_the_one_before_and_their_origins() -> None:
    layers = merged({"env": {"level": 1, "data": "x"}}, {"env": {"name": "code", "level": 9}})
    assert layers.spec().env.settings == {"level": 9}
    assert layers.origin["env.level"] == "layer 2"
    assert "env.data" not in layers.origin


def test_naming_the_same_plugin_again_keeps_its_settings() -> None:
    assert merged({"env": {"level": 1}}, {"env": "math"}).spec().env.settings == {"level": 1}


def test_a_layer_that_names_rewards_replaces_the_choice() -> None:
    recipe = {
        "reward": {"verifier": {"plugin": "verifier", "strict": True}, "judge": {"plugin": "judge", "model": "m"}}
    }
    layers = merged(recipe, {"reward": ["verifier:0.5"]})
    (entry,) = layers.spec().reward.values()
    assert (entry.plugin, entry.weight, entry.settings) == ("verifier", 0.5, {"strict": True})
    assert not [key for key in layers.origin if key.startswith("reward.judge")]


def test_a_label_given_to_another_plugin_forgets_the_settings_of_the_first() -> None:
    recipe = {"reward": {"tone": {"plugin": "judge", "model": "m"}}}
    assert merged(recipe, {"reward": ["tone=verifier"]}).spec().reward["tone"].settings == {}
    assert merged(recipe, {"reward": ["tone=judge"]}).spec().reward["tone"].settings == {"model": "m"}


def test_settings_may_have_the_names_of_plugin_kinds() -> None:
    """Only at the top level is `engine = "x"` short for choosing a plugin."""
    spec = merged(flags("env.engine=unity", "env.backend=docker", "env.reward=dense", "train.algo=x")).spec()
    assert spec.env.settings == {"engine": "unity", "backend": "docker", "reward": "dense"}
    assert spec.train == {"algo": "x"}


def test_null_means_no_value_in_every_layer() -> None:
    layers = merged({"run": {"name": "x"}, "env": {"data": "file"}}, flags("name=null", "env.data=null"))
    assert layers.spec().run.name is None
    assert layers.spec().env.settings == {"data": None}


def test_defaults_of_backend_and_engine() -> None:
    spec = merged(flags("engine.batch=4")).spec()
    assert (spec.backend.name, spec.engine.name, spec.engine.settings) == ("local", "hf", {"batch": "4"})
    assert spec.run_name() == "math-grpo-smollm2"
    assert merged({"model": "/weights/My Model", "run": {"name": "a/b c"}}).spec().run_name() == "a-b-c"


# Flags and environment


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_every_alias_is_a_setting_that_exists(alias: str) -> None:
    value = "console" if alias == "hooks" else "3"
    by_flag = merged(flags(f"{alias}={value}")).spec()
    variable = f"PLUGYM_{alias.upper().replace('-', '_')}"
    assert merged(environment_layer({variable: value})).spec() == by_flag != merged().spec()


def test_flags_in_any_order_say_the_same() -> None:
    pairs = ["env=math", "env.level=2", "reward=verifier", "reward=tone=judge:0.2", "reward.tone.model=m"]
    expected = merged(flags(*pairs)).spec()
    assert merged(flags(*reversed(pairs))).spec().env == expected.env
    assert merged(flags(*pairs[1:], pairs[0])).spec() == expected
    assert expected.reward["tone"].settings == {"model": "m"}


def test_lists_and_tables_on_the_command_line_are_toml() -> None:
    assert flags('env.tools=["a", "b"]') == {"env": {"tools": ["a", "b"]}}
    assert flags("env.tools=a", "env.tools=b") == {"env": {"tools": ["a", "b"]}}
    assert merged(flags("hooks=console")).spec().run.hooks == ["console"]
    with pytest.raises(BadInput, match=r"--env.tools: '\[a' is not a TOML value"):
        flags("env.tools=[a")


@pytest.mark.parametrize(
    ("text", "label", "entry"),
    [
        ("judge", "judge", {"plugin": "judge"}),
        ("judge:0.2", "judge", {"plugin": "judge", "weight": 0.2}),
        ("judge:-1e-3", "judge", {"plugin": "judge", "weight": -0.001}),
        ("judge@acme", "judge", {"plugin": "judge@acme"}),
        ("tone=judge@acme:0.2", "tone", {"plugin": "judge@acme", "weight": 0.2}),
        ("gym:Frozen-v1", "gym", {"plugin": "gym:Frozen-v1"}),
    ],
)
def test_reward_spellings(text: str, label: str, entry: dict[str, Any]) -> None:
    assert parse_reward(text) == (label, entry)


def test_environment_variables_of_ours_that_fit_nothing_are_refused() -> None:
    assert environment_layer({"PLUGYM_CACHE": "/x", "PLUGYM_SHARED": "/y", "PATH": "/bin"}) == {}
    assert environment_layer({"PLUGYM_REWARD": "judge:0.5"}) == {"reward": ["judge:0.5"]}
    with pytest.raises(BadInput, match=r"environment variable PLUGYM_STEP fits no setting; they start with one of"):
        environment_layer({"PLUGYM_STEP": "3"})


# One clear line for what cannot work


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        (
            {"rollout": {"group_sizee": 4}},
            "unknown option --rollout.group_sizee: did you mean 'group_size'? Valid here:",
        ),
        ({"rolout": {"group_size": 4}}, "unknown option --rolout: did you mean 'rollout'?"),
        ({"rollout": {"group_size": "many"}}, "option --rollout.group_size: Input should be a valid integer"),
        ({"rollout": {"group_size": 0}}, "option --rollout.group_size: Input should be greater than or equal to 1"),
        ({"rollout": {"history": "window"}}, "option --rollout.history: Input should be 'append' or 'template'"),
        ({"rollout": 3}, "option --rollout: Input should be a valid dictionary"),
        ({"run": {"seed": None}}, "option --run.seed"),
        ({"env": ["math", "code"]}, "env (layer 1): choose exactly one by its name, got ['math', 'code']"),
        ({"env": 3}, "env (layer 1): choose exactly one"),
        ({"algo": True}, "algo (layer 1): choose exactly one"),
        ({"reward": 3}, "reward (layer 1): expected a name"),
        ({"reward": {"verifier": 0.5}}, "reward (layer 1): expected a name"),
        ({"reward": [":0.5"]}, "cannot read --reward ':0.5'"),
        ({"reward": ["judge:nan"]}, "option --reward.judge.weight: Input should be a finite number"),
        ({"reward": {"judge": {"model": "m"}}}, "settings for reward 'judge', but no such reward: chosen are verifier"),
    ],
)
def test_slips_are_one_clear_line(layer: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        merged(layer).spec()
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("missing", ["env", "reward", "algo"])
def test_what_must_be_chosen(missing: str) -> None:
    layers = Layers()
    layers.add({key: value for key, value in BASE.items() if key != missing}, "flag")
    with pytest.raises(BadInput, match=f"--{missing} NAME; `runner list` shows"):
        layers.spec()


def test_two_flags_for_one_choice_are_a_slip() -> None:
    with pytest.raises(BadInput, match=r"choose exactly one"):
        merged(flags("env=math", "env=code"))


def test_a_value_that_is_no_table_has_no_settings() -> None:
    with pytest.raises(BadInput, match=r"option --model.x: 'model' already has a plain value"):
        flags("model=tiny", "model.x=1")


def test_run_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*absent.toml: No such file"):
        file_layer(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("steps = ")
    with pytest.raises(BadInput, match=r"bad.toml is not valid TOML"):
        file_layer(tmp_path / "bad.toml")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(BadInput, match=r"latin.toml is not valid TOML"):
        file_layer(tmp_path / "latin.toml")


# The round trip

text = st.text(st.characters(codec="utf-8"), max_size=6).filter(lambda s: s != "null")
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | text
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=6
)


@settings(max_examples=60)
@given(st.dictionaries(text, values, max_size=4))
def test_toml_is_read_back_as_it_was_written(data: dict[str, Any]) -> None:
    assert tomllib.loads(dump_toml(data)) == data


keys = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda key: key not in ("name", "plugin", "weight"))
plugin_settings = st.dictionaries(keys, values | st.none(), max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    env=plugin_settings,
    reward=plugin_settings,
    train=plugin_settings,
    weight=st.floats(allow_nan=False, allow_infinity=False),
    label=st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True),
    top_p=st.floats(0.001, 1),
    name=st.none() | text,
)
def test_a_spec_is_read_back_from_its_file(
    env: Any, reward: Any, train: Any, weight: float, label: str, top_p: float, name: str | None
) -> None:
    spec = RunSpec.model_validate(
        {
            "env": {"name": "math", "settings": env},
            "reward": {label: {"plugin": "judge@acme", "weight": weight, "settings": reward}},
            "algo": {"name": "grpo"},
            "train": train,
            "rollout": RolloutSettings(top_p=top_p),
            "run": {"name": name, "hooks": ["console", "null hook"]},
        }
    )
    layers = Layers()
    layers.add(tomllib.loads(dump_toml(to_layer(spec))), "config.toml")
    assert layers.spec() == spec


def test_a_weight_may_follow_a_schedule() -> None:
    layers = Layers()
    layers.add({"env": "math", "reward": ["verifier", "brief"], "algo": "grpo"}, "run.toml")
    layers.add(flag_layer([("reward.brief.weight", "{start = 1, end = 0, steps = 10}")]), "flag")
    weight = layers.spec().reward["brief"].weight
    assert not isinstance(weight, float)
    assert (weight.start, weight.end, weight.steps) == (1.0, 0.0, 10)
    again = Layers()
    again.add(to_layer(layers.spec()), "config.toml")
    assert again.spec() == layers.spec()
