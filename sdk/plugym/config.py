"""Settings of a run: the `RunSpec`, its layers, and where each value came from.

Layers, later ones win: defaults < recipe < run file < environment `PLUGYM_*` < flags. A layer is a nested dictionary;
values may be strings (flags and environment always are) and are converted by the model that owns them. The string
`null` means "no value" in every layer, because TOML has none.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator

from plugym.errors import BadInput

Settings = dict[str, Any]


ALIASES: Mapping[str, str] = {
    "steps": "run.steps",
    "seed": "run.seed",
    "name": "run.name",
    "out": "run.out",
    "hooks": "run.hooks",
    "checkpoint-every": "run.checkpoint_every",
    "group-size": "rollout.group_size",
    "tasks-per-step": "rollout.tasks_per_step",
    "lr": "train.lr",
}
"""Short flags for what is set most often."""

PLUGIN_KEYS = ("env", "algo", "backend", "engine")
_DEFAULT_PLUGIN = {"backend": "local", "engine": "hf"}
_RESERVED_ENVIRONMENT = frozenset({"PLUGYM_CACHE", "PLUGYM_SHARED"})


class Section(BaseModel, extra="forbid"):
    """Base of every section: unknown keys are refused."""


class PluginEntry(Section):
    """A chosen plugin and its settings."""

    name: str
    settings: Settings = Field(default_factory=dict)


class WeightSchedule(Section):
    """A weight that moves linearly from `start` to `end` over `steps` training steps, then stays."""

    start: float = Field(allow_inf_nan=False)
    end: float = Field(allow_inf_nan=False)
    steps: int = Field(ge=1)


class RewardEntry(Section):
    """One part of the reward: the plugin behind a label, its weight (or a schedule of it) and settings."""

    plugin: str
    weight: Annotated[float, Field(allow_inf_nan=False)] | WeightSchedule = 1.0
    settings: Settings = Field(default_factory=dict)


class RolloutSettings(Section):
    """How episodes are played."""

    tasks_per_step: int = Field(4, ge=1, description="tasks (groups) per training step")
    group_size: int = Field(8, ge=1, description="episodes per task")
    max_turns: int = Field(16, ge=1, description="assistant turns per episode")
    max_turn_tokens: int = Field(256, ge=1, description="tokens the policy may sample in one turn")
    max_response_tokens: int = Field(2048, ge=1, description="generated plus observation tokens per episode")
    temperature: float = Field(1.0, gt=0, description="sampling temperature in training")
    top_p: float = Field(1.0, gt=0, le=1, description="nucleus sampling in training")
    top_k: int = Field(0, ge=0, description="0 = off")
    history: Literal["append", "template"] = Field("append", description="render only new messages, or everything")
    parser: str = Field("auto", description="tool-call format; auto = hermes where the environment has tools")
    max_concurrent: int = Field(256, ge=1, description="episodes played at the same time")
    step_deadline: float = Field(60.0, gt=0, description="seconds for one reset or step of the environment")
    generate_deadline: float = Field(600.0, gt=0, description="seconds for one completion")
    episode_deadline: float = Field(3600.0, gt=0, description="seconds for one episode")
    retries: int = Field(2, ge=0, description="further tries of an episode after an infrastructure failure")
    backoff: float = Field(0.5, ge=0, description="seconds before the first retry, doubled each time")
    same_failure_limit: int = Field(32, ge=1, description="stop when this many first episodes fail in the same way")
    same_failure_share: float = Field(0.5, gt=0, le=1, description="stop when more of a step than this fails alike")


class EvalSettings(Section):
    """How the policy is evaluated."""

    split: str = Field("eval", description="split of the environment's tasks")
    n_tasks: int = Field(200, ge=1, description="at most this many tasks")
    n: int = Field(1, ge=1, description="episodes per task")
    temperature: float = Field(0.0, ge=0, description="0 = greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    before: bool = Field(False, description="evaluate the starting model")
    after: bool = Field(False, description="evaluate the trained model")
    every: int = Field(0, ge=0, description="evaluate each N steps, 0 = never in between")


class RunSettings(Section):
    """The run itself."""

    name: str | None = Field(None, description="folder name; default: env-algo-model")
    out: str = Field("runs", description="where run directories go")
    steps: int = Field(100, ge=0, description="training steps")
    seed: int = Field(0, ge=0, description="seed of everything random")
    checkpoint_every: int = Field(50, ge=0, description="steps between checkpoints, 0 = only the last")
    keep_checkpoints: int = Field(3, ge=1, description="older ones are removed")
    max_skipped: int = Field(10, ge=0, description="extra pulls per step when groups are filtered out")
    threads: int = Field(0, ge=0, description="torch threads, 0 = physical cores")
    hooks: list[str] = Field(default_factory=lambda: ["console", "store", "tensorboard"])

    @field_validator("hooks", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class RunSpec(Section):
    """A whole run: one environment, one reward, one algorithm, a model, and how they are run."""

    model: str = "smollm2"
    env: PluginEntry
    reward: dict[str, RewardEntry]
    algo: PluginEntry
    backend: PluginEntry = PluginEntry(name=_DEFAULT_PLUGIN["backend"])
    engine: PluginEntry = PluginEntry(name=_DEFAULT_PLUGIN["engine"])
    rollout: RolloutSettings = RolloutSettings()
    train: Settings = Field(default_factory=dict, description="settings of the backend's trainer")
    eval: EvalSettings = EvalSettings()
    run: RunSettings = RunSettings()

    def run_name(self) -> str:
        name = self.run.name or "-".join((self.env.name, self.algo.name, Path(self.model).name))
        return re.sub(r"[^A-Za-z0-9._-]+", "-", name)


@dataclass(slots=True)
class Layers:
    """Settings merged so far, and the origin of each dotted key.

    >>> layers = Layers()
    >>> layers.add({"env": "math", "reward": ["verifier"], "algo": "grpo"}, "run.toml")
    >>> layers.add(flag_layer([("env.level", "2"), ("steps", "3")]), "flag")
    >>> spec = layers.spec()
    >>> spec.env.name, spec.env.settings, spec.run.steps, layers.origin["env.level"]
    ('math', {'level': '2'}, 3, 'flag')
    """

    merged: Settings = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)

    def add(self, layer: Mapping[str, Any], origin: str) -> None:
        """Merge a layer over the earlier ones. Raises `BadInput` where a plugin or reward is given in no known form."""
        normal = _top_level(layer, origin)
        if "reward" in layer and not isinstance(layer["reward"], Mapping):
            self._replace_reward(normal)
        for key in PLUGIN_KEYS:
            chosen = normal.get(key, {}).get("name")
            if chosen is not None and chosen != self.merged.get(key, {}).get("name", chosen):
                self._drop(key)  # another plugin: the earlier one's settings mean nothing to it
        _merge(self.merged, normal)
        for key, _ in _walk(normal):
            self.origin[key] = origin

    def _replace_reward(self, normal: Settings) -> None:
        """A layer that names rewards replaces the choice but keeps the settings of labels it gives to the same
        plugin."""
        for label, entry in list(self.merged.get("reward", {}).items()):
            if entry.get("plugin") != normal["reward"].get(label, {}).get("plugin"):
                self._drop(f"reward.{label}")

    def _drop(self, key: str) -> None:
        """Forget a table and where its values came from."""
        *path, last = key.split(".")
        table = self.merged
        for part in path:
            table = table[part]
        table.pop(last, None)
        for known in [known for known in self.origin if known.startswith(f"{key}.")]:
            del self.origin[known]

    def spec(self) -> RunSpec:
        """The validated spec. Raises `BadInput` with one line that lists the valid keys."""
        for key in ("env", "algo"):
            if not self.merged.get(key, {}).get("name"):
                raise BadInput(f"choose one with --{key} NAME; `runner list` shows what is installed")
        rewards = self.merged.get("reward")
        if not rewards:
            raise BadInput("choose a reward with --reward NAME; `runner list` shows what is installed")
        for label, entry in rewards.items():
            if "plugin" not in entry:
                raise BadInput(f"settings for reward {label!r}, but no such reward: chosen are {_labels(rewards)}")
        return parse_section(RunSpec, _nest_settings(self.merged))


def _labels(rewards: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(label for label, entry in rewards.items() if "plugin" in entry) or "none"


def parse_section(model: type[RunSpec], data: Mapping[str, Any]) -> RunSpec:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problem = error.errors()[0]
        # Of a union, pydantic names the member it tried last; the user knows no such part of the option.
        path = [str(part) for part in problem["loc"] if part not in ("float", WeightSchedule.__name__)]
        key = ".".join(path)
        if problem["type"] == "extra_forbidden":
            valid = _valid_keys(path[:-1])
            close = difflib.get_close_matches(path[-1], valid, n=1)
            hint = f" did you mean {close[0]!r}?" if close else ""
            raise BadInput(f"unknown option --{key}:{hint} Valid here: {', '.join(valid)}") from error
        raise BadInput(f"option --{key}: {problem['msg']} (got {problem['input']!r})") from error


def _valid_keys(path: Sequence[str]) -> list[str]:
    model: Any = RunSpec
    for part in path:
        model = model.model_fields[part].annotation if part in model.model_fields else RunSpec
    return list(model.model_fields)


_REWARD = re.compile(r"^(?:(?P<label>[A-Za-z_]\w*)=)?(?P<plugin>[^:=]+?)(?::(?P<suffix>.+))?$")


def parse_reward(text: str) -> tuple[str, Settings]:
    """`judge`, `judge:0.2`, `tone=judge@dist:0.2` to (label, entry); a numeric suffix is a weight.

    >>> parse_reward("tone=judge@acme:0.2")
    ('tone', {'plugin': 'judge@acme', 'weight': 0.2})
    """
    match = _REWARD.match(text.strip())
    if match is None:
        raise BadInput(f"cannot read --reward {text!r}: expected [label=]name[@dist][:weight]")
    plugin, suffix = match["plugin"], match["suffix"]
    entry: Settings = {"plugin": plugin}
    if suffix is not None:
        try:
            entry["weight"] = float(suffix)
        except ValueError:
            entry["plugin"] = f"{plugin}:{suffix}"
    return match["label"] or plugin.partition("@")[0], entry


def _top_level(layer: Mapping[str, Any], origin: str) -> Settings:
    """Short forms to the full shape: `env = "math"`, `reward = ["verifier", "judge:0.2"]`, `null`."""
    out = _without_nulls(layer)
    for key in PLUGIN_KEYS:
        if isinstance(out.get(key), str):
            out[key] = {"name": out[key]}
        elif not isinstance(out.get(key, {}), dict):
            raise BadInput(f"{key} ({origin}): choose exactly one by its name, got {out[key]!r}")
    reward = out.get("reward", {})
    if isinstance(reward, str | list):
        out["reward"] = _reward_table([reward] if isinstance(reward, str) else reward, origin)
    elif not (isinstance(reward, dict) and all(isinstance(entry, dict) for entry in reward.values())):
        raise BadInput(f"reward ({origin}): expected a name, a list of names or a table for each label, got {reward!r}")
    return out


def _without_nulls(layer: Mapping[str, Any]) -> Settings:
    """A copy in which the string `null` is None."""
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) else None if value == "null" else value
        for key, value in layer.items()
    }


def _reward_table(entries: Sequence[Any], origin: str) -> Settings:
    table: Settings = {}
    for text in entries:
        label, entry = parse_reward(str(text))
        if label in table:
            raise BadInput(
                f"two rewards are labelled {label!r} ({origin}): name one with --reward LABEL={entry['plugin']}"
            )
        table[label] = entry
    return table


def _nest_settings(merged: Mapping[str, Any]) -> Settings:
    """`env = {name, level}` to `env = {name, settings = {level}}`: plugin settings are the plugin's to validate."""
    out = dict(merged)
    for key in PLUGIN_KEYS:
        if key in out:
            settings = {k: v for k, v in out[key].items() if k != "name"}
            out[key] = {"name": out[key].get("name", _DEFAULT_PLUGIN.get(key)), "settings": settings}
    out["reward"] = {
        label: {k: entry[k] for k in ("plugin", "weight") if k in entry}
        | {"settings": {k: v for k, v in entry.items() if k not in ("plugin", "weight")}}
        for label, entry in out["reward"].items()
    }
    return out


def _merge(into: Settings, layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, Mapping) else value


def _walk(layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from _walk(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def set_dotted(into: Settings, key: str, value: Any) -> None:
    """Set `a.b.c`; a plain value already there becomes the `name` of a plugin entry."""
    *path, last = key.split(".")
    for i, part in enumerate(path):
        child = into.setdefault(part, {})
        if isinstance(child, str) and part in PLUGIN_KEYS:
            child = into[part] = {"name": child}
        elif isinstance(child, list) and part == "reward":
            child = into[part] = _reward_table(child, "flag")
        if not isinstance(child, dict):
            raise BadInput(f"option --{key}: {'.'.join(path[: i + 1])!r} already has a plain value")
        into = child
    if isinstance(into.get(last), dict):
        into[last]["name"] = value
    else:
        into[last] = value


def flag_layer(flags: Sequence[tuple[str, str]]) -> Settings:
    """Flags in order to a layer. Repeated flags make a list; `[...]` and `{...}` values are read as TOML.

    >>> flag_layer([("reward", "verifier"), ("reward", "judge:0.2"), ("train.lr", "1e-4")])
    {'reward': ['verifier', 'judge:0.2'], 'train': {'lr': '1e-4'}}
    """
    values: dict[str, list[Any]] = {}
    for key, text in flags:
        values.setdefault(ALIASES.get(key, key).replace("-", "_"), []).append(_flag_value(key, text))
    layer: Settings = {}
    if "reward" in values:  # before its settings, so that `--reward.x.y` finds the labels
        layer["reward"] = values.pop("reward")
    for key, found in values.items():
        set_dotted(layer, key, found[0] if len(found) == 1 else found)
    return layer


def _flag_value(key: str, text: str) -> Any:
    if text[:1] not in ("[", "{"):
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        raise BadInput(f"option --{key}: {text!r} is not a TOML value ({error})") from error


def environment_layer(environ: Mapping[str, str] | None = None) -> Settings:
    """`PLUGYM_TRAIN__LR=1e-4` to `train.lr`. Raises `BadInput` for a name that fits nothing.

    >>> environment_layer({"PLUGYM_TRAIN__LR": "1e-4"})
    {'train': {'lr': '1e-4'}}
    """
    layer: Settings = {}
    for name, value in sorted((os.environ if environ is None else environ).items()):
        if not name.startswith("PLUGYM_") or name in _RESERVED_ENVIRONMENT:
            continue
        key = name.removeprefix("PLUGYM_").lower().replace("__", ".")
        key = ALIASES.get(key.replace("_", "-"), key)
        if key.partition(".")[0] not in RunSpec.model_fields:
            valid = ", ".join(f"PLUGYM_{field.upper()}" for field in RunSpec.model_fields)
            raise BadInput(f"environment variable {name} fits no setting; they start with one of: {valid}")
        set_dotted(layer, key, [value] if key == "reward" else value)
    return layer


def file_layer(path: Path) -> Settings:
    """A run file or recipe (TOML). Raises `BadInput` when it is missing or does not parse."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOML, UTF-8, digits of a number, depth
        raise BadInput(f"{path} is not valid TOML: {error}") from error


def to_layer(spec: RunSpec) -> Settings:
    """The spec in the shape of a run file: reading it back gives the same spec."""
    data = spec.model_dump()
    for key in PLUGIN_KEYS:
        data[key] = {"name": data[key]["name"], **data[key]["settings"]}
    for entry in data["reward"].values():
        entry.update(entry.pop("settings"))
    return data
