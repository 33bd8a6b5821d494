"""Describes settings for people: what a `Config` holds, read off the pydantic model, for `show` and `--help`."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined, to_jsonable_python

from plugym.config import ALIASES, RunSpec
from plugym.errors import PluginError
from plugym.registry import registry

_CHOICES = {"env": "envs", "reward": "rewards", "algo": "algos", "backend": "runners", "engine": "engines"}
_CHOICE_FORMS = {"reward": "[LABEL=]NAME[:WEIGHT]"}

# Constraints as annotated_types and pydantic write them, and as people do.
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One option. `default` is a JSON value; `required` where there is none."""

    name: str
    type: str
    default: Any
    required: bool
    description: str

    @property
    def summary(self) -> str:
        """Description and default on one line."""
        default = "required" if self.required else f"default {_written(self.default)}"
        return f"{self.description} [{default}]" if self.description else f"[{default}]"


def describe(model: type[BaseModel], prefix: str = "") -> list[Setting]:
    """The settings of a model in their order; `prefix` is put before each name.

    >>> from pydantic import Field
    >>> class Config(BaseModel):
    ...     level: int = Field(1, ge=0, description="difficulty")
    >>> describe(Config, "--env.")[0].name, describe(Config)[0].type, describe(Config)[0].summary
    ('--env.level', 'int >=0', 'difficulty [default 1]')
    """
    return [_setting(f"{prefix}{name}", field) for name, field in model.model_fields.items()]


def _setting(name: str, field: FieldInfo) -> Setting:
    default = field.get_default(call_default_factory=True, validated_data={})
    required = default is PydanticUndefined
    value = None if required else to_jsonable_python(default, fallback=str)
    kind = " ".join([_type_name(field.annotation), *_constraints(field)])
    return Setting(name, kind, value, required, field.description or "")


def _constraints(field: FieldInfo) -> Iterator[str]:
    for item in field.metadata:
        for attribute, sign in _BOUNDS.items():
            if (bound := getattr(item, attribute, None)) is not None:
                yield f"{sign}{bound}"


def _type_name(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return "|".join(str(value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return "|".join(_type_name(argument) for argument in arguments)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin is not None:
        inner = ",".join("..." if argument is Ellipsis else _type_name(argument) for argument in arguments)
        return f"{origin.__name__}[{inner}]"
    if annotation in (None, type(None)):
        return "null"
    return str(getattr(annotation, "__name__", annotation))


def _written(value: Any) -> str:
    """A default as it would be typed."""
    if value is None:
        return "null"
    return value if isinstance(value, str) and value else json.dumps(value)


def config_of(kind: str, name: str) -> type[BaseModel] | None:
    """The `Config` of a plugin, None where it has no settings. Imports it; raises `PluginError`."""
    config = getattr(registry().load(kind, name), "Config", None)
    return config if isinstance(config, type) and issubclass(config, BaseModel) else None


Section = tuple[str, list[tuple[str, str]]]
"""A heading, and (option, explanation) rows."""


def run_sections() -> list[Section]:
    """What a run is composed of, and the settings that every run has."""
    choices = [(key, ", ".join(info.name for info in registry().plugins(kind))) for key, kind in _CHOICES.items()]
    composition = [(f"--{key} {_CHOICE_FORMS.get(key, 'NAME')}", f"installed: {names}") for key, names in choices]
    composition.append(
        ("--model NAME", f"shipped or hub name, or a directory [default {RunSpec.model_fields['model'].default}]")
    )
    aliases = {target: f"--{alias}, " for alias, target in ALIASES.items()}
    sections: list[Section] = [("composition", composition)]
    for name in ("run", "rollout", "eval"):
        model = RunSpec.model_fields[name].annotation
        assert isinstance(model, type)
        settings = describe(model, f"--{name}.")
        rows = [(f"{aliases.get(s.name[2:], '')}{s.name} {s.type}", s.summary) for s in settings]
        sections.append((f"{name} settings", rows))
    return sections


def plugin_sections(chosen: typing.Mapping[str, Any]) -> list[Section]:
    """The settings of the plugins named in merged layers; one that cannot be loaded says why."""
    plugins = [
        ("envs", "env", "--env."),
        ("algos", "algo", "--algo."),
        ("runners", "backend", "--train."),
        ("engines", "engine", "--engine."),
    ]
    named = [(kind, _chosen_name(chosen, key), prefix) for kind, key, prefix in plugins]
    named[1:1] = [
        ("rewards", entry.get("plugin"), f"--reward.{label}.") for label, entry in chosen.get("reward", {}).items()
    ]
    return [_plugin_section(kind, name, prefix) for kind, name, prefix in named if name]


def _chosen_name(chosen: typing.Mapping[str, Any], key: str) -> str | None:
    default = RunSpec.model_fields[key].default
    name = chosen.get(key, {}).get("name", default.name if default is not PydanticUndefined else None)
    return None if name is None else str(name)


def _plugin_section(kind: str, name: str, prefix: str) -> Section:
    heading = f"{name} ({kind.removesuffix('s')}) settings"
    try:
        config = config_of(kind, name)
    except PluginError as error:
        return heading, [("not available:", str(error))]
    settings = describe(config, prefix) if config else []
    return heading, [(f"{s.name} {s.type}", s.summary) for s in settings] or [("none", "")]
