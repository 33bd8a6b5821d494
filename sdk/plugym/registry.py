"""Discovery: which plugins exist, known from metadata alone; only the chosen one is imported.

Plugins are entry points in the groups `plugym.<kind>`. A name claimed by two distributions is an error that names both
and the qualified form `name@dist`. `registry.toml` is the catalogue of known plugins: it turns an unknown name into
the pip command that brings it. A user's own registry.toml may add `name = "module:attr"` plugins, pin versions, and
allow or deny distributions; a denied plugin is never imported.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata as metadata
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from plugym.errors import PluginError, PlugymError

KINDS: tuple[str, ...] = (
    "envs",
    "rewards",
    "algos",
    "runners",
    "engines",
    "sandboxes",
    "tools",
    "parsers",
    "checkers",
    "hooks",
)
"""Kinds of plugins; the entry-point group of a kind is `plugym.<kind>`."""

SINGULAR: Mapping[str, str] = {
    "envs": "environment",
    "rewards": "reward",
    "algos": "algorithm",
    "runners": "runner",
    "engines": "engine",
    "sandboxes": "sandbox",
    "tools": "tool",
    "parsers": "parser",
    "checkers": "checker",
    "hooks": "hook",
}


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin as the metadata knows it."""

    kind: str
    name: str
    dist: str
    version: str
    target: str
    summary: str = ""


@dataclass(slots=True)
class UserRegistry:
    """A user's registry.toml: `[envs] name = "module:attr"`, `[pins] dist = "1.2"`, `allow = [...]`, `deny = [...]`."""

    local: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> UserRegistry:
        try:
            data = tomllib.loads(path.read_text())
        except OSError as error:
            raise PluginError(f"cannot read {path}: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise PluginError(f"{path}: {error}") from error
        unknown = set(data) - {*KINDS, "allow", "deny", "pins"}
        if unknown:
            raise PluginError(
                f"{path}: unknown section {sorted(unknown)[0]!r}; valid: {', '.join(KINDS)}, allow, deny, pins"
            )
        local = {kind: dict(data[kind]) for kind in KINDS if kind in data}
        return cls(local, tuple(data.get("allow", ())), tuple(data.get("deny", ())), dict(data.get("pins", {})))

    def admits(self, dist: str) -> bool:
        return dist not in self.deny and (not self.allow or dist in self.allow or dist in ("plugym", "local"))


class Registry:
    """All plugins of this Python environment, plus a user's additions."""

    def __init__(self, user: UserRegistry | None = None) -> None:
        self.user = user or UserRegistry()
        self._plugins: dict[str, dict[str, list[PluginInfo]]] = {kind: {} for kind in KINDS}
        catalogue = _catalogue()
        for point in _entry_points():
            kind = point.group.removeprefix("plugym.")
            dist = point.dist.name if point.dist else "unknown"
            version = point.dist.version if point.dist else ""
            if kind not in self._plugins:
                continue
            summary = catalogue.get(kind, {}).get(point.name, {}).get("summary", "")
            self._add(PluginInfo(kind, point.name, dist, version, point.value, summary))
        for kind, plugins in self.user.local.items():
            for name, target in plugins.items():
                self._add(PluginInfo(kind, name, "local", "", target, "from the user's registry.toml"))

    def _add(self, info: PluginInfo) -> None:
        claims = self._plugins[info.kind].setdefault(info.name, [])
        if info not in claims:
            claims.append(info)

    def plugins(self, kind: str | None = None) -> list[PluginInfo]:
        """Every known plugin, sorted; those of denied distributions included (they are listed, never imported)."""
        kinds = [kind] if kind else KINDS
        return [info for k in kinds for name in sorted(self._plugins[k]) for info in self._plugins[k][name]]

    def find(self, kind: str, name: str) -> PluginInfo:
        """The one plugin of this kind called `name` or `name@dist`. Raises `PluginError` with the fix."""
        bare, _, dist = name.partition("@")
        claims = self._plugins[kind].get(bare, [])
        if dist:
            claims = [info for info in claims if _canonical(info.dist) == _canonical(dist)]
        if not claims:
            raise PluginError(self._unknown(kind, name))
        if len(claims) > 1:
            names = " and ".join(f"{info.name}@{info.dist}" for info in claims)
            raise PluginError(f"two plugins are called {bare!r} ({SINGULAR[kind]}): choose {names}")
        info = claims[0]
        if not self.user.admits(info.dist):
            raise PluginError(f"{SINGULAR[kind]} {bare!r} comes from {info.dist!r}, which registry.toml does not allow")
        pin = self.user.pins.get(info.dist)
        if pin is not None and info.version != pin:
            raise PluginError(
                f"registry.toml pins {info.dist}=={pin}, installed is {info.version}: pip install '{info.dist}=={pin}'"
            )
        return info

    def _unknown(self, kind: str, name: str) -> str:
        known = sorted(self._plugins[kind])
        text = f"unknown {SINGULAR[kind]} {name!r}"
        entry = _catalogue().get(kind, {}).get(name.partition("@")[0])
        if entry:
            return f"{text} is not installed ({entry['summary']}): pip install '{_requirement(entry)}'"
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        if close:
            return f"{text}: did you mean {close[0]!r}? Known: {', '.join(known)}"
        return f"{text}: known are {', '.join(known) or 'none'}; `runner list` shows all"

    def load(self, kind: str, name: str) -> Any:
        """Import the plugin and return what its entry point names (a class, or a function for checkers)."""
        info = self.find(kind, name)
        module, _, attribute = info.target.partition(":")
        try:
            target = importlib.import_module(module)
            for part in attribute.split("."):
                target = getattr(target, part)
        except PlugymError:
            raise
        except Exception as error:
            raise PluginError(
                f"{SINGULAR[kind]} {info.name!r} from {info.dist} is broken: {type(error).__name__}: {error} "
                f"(loading {info.target})"
            ) from error
        return target

    def create(self, kind: str, name: str, settings: Mapping[str, Any] | None = None, *, prefix: str = "") -> Any:
        """Construct a plugin class with validated settings. `prefix` is how its options are spelled (`--env.`)."""
        plugin = self.load(kind, name)
        return plugin(validate_settings(plugin.Config, settings or {}, prefix=prefix, owner=name))


def validate_settings(model: type[BaseModel], settings: Mapping[str, Any], *, prefix: str = "", owner: str = "") -> Any:
    """Settings as the plugin's `Config`; problems become one line that lists the valid options."""
    given = {key: _listed(model, key, value) for key, value in settings.items()}
    try:
        return model.model_validate(given)
    except ValidationError as error:
        problem = error.errors()[0]
        option = ".".join(str(part) for part in problem["loc"])
        valid = ", ".join(f"{prefix}{name}" for name in model.model_fields) or "none"
        if problem["type"] == "extra_forbidden":
            close = difflib.get_close_matches(option, list(model.model_fields), n=1)
            hint = f"; did you mean {prefix}{close[0]}?" if close else ""
            raise PluginError(f"{owner} has no option {prefix}{option}{hint} Valid options: {valid}") from error
        raise PluginError(f"option {prefix}{option} of {owner}: {problem['msg']} (got {problem['input']!r})") from error


def _requirement(entry: Mapping[str, Any]) -> str:
    """What pip installs for a catalogue entry: `dist` or `dist[extra]`."""
    return f"{entry['distribution']}[{entry['extra']}]" if entry.get("extra") else str(entry["distribution"])


def _listed(model: type[BaseModel], key: str, value: Any) -> Any:
    """A single flag for a list option (`--env.tools calculator`) is a list of one."""
    option = model.model_fields.get(key)
    is_list = option is not None and typing.get_origin(option.annotation) is list
    return [value] if is_list and isinstance(value, str) else value


def _canonical(dist: str) -> str:
    return dist.lower().replace("_", "-").replace(".", "-")


def _entry_points() -> list[metadata.EntryPoint]:
    """One pass over the installed metadata; a distribution found twice counts once, as the first on the path."""
    points: dict[str, list[metadata.EntryPoint]] = {}
    for dist in metadata.distributions():
        name = _canonical(dist.metadata["Name"] or "")
        if name not in points:
            points[name] = [point for point in dist.entry_points if point.group.startswith("plugym.")]
    return [point for name in sorted(points) for point in points[name]]


@cache
def _catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """The shipped registry.toml: inside the wheel next to this module, at the root in a source checkout."""
    here = Path(__file__).parent
    for path in (here / "registry.toml", here.parent.parent / "registry.toml"):
        if path.is_file():
            return tomllib.loads(path.read_text())
    raise PluginError("registry.toml is missing from the installation: reinstall plugym")


_current: Registry | None = None


def registry() -> Registry:
    """The registry of this process, built on first use."""
    global _current
    if _current is None:
        _current = Registry()
    return _current


def use_registry(new: Registry | None) -> None:
    """Replace the registry of this process (a user's registry.toml; tests). None: rebuild on next use."""
    global _current
    _current = new
