"""Discovery: which plugins exist, known from metadata alone; only the chosen one is imported.

Plugins are entry points in the groups `plugym.<kind>`. A name claimed by two distributions is an error that names both
and the qualified form `name@dist`. `registry.toml` is the catalogue of known plugins: it turns an unknown name into
the pip command that brings it. A user's own registry.toml may add `name = "module:attr"` plugins, pin versions, and
allow or deny distributions; a denied plugin is never imported.
"""

from __future__ import annotations

import importlib
import importlib.metadata as metadata
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugym.errors import PluginError, PlugymError

if TYPE_CHECKING:
    from pydantic import BaseModel

# `import plugym` runs this module: what only errors and settings need (pydantic, difflib, tomllib) is imported there.

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

    @property
    def summary(self) -> str:
        """One line from the catalogue; empty for a plugin it does not know."""
        return str(_catalogue().get(self.kind, {}).get(self.name, {}).get("summary", ""))


@dataclass(slots=True)
class UserRegistry:
    """A user's registry.toml: `[envs] name = "module:attr"`, `[pins] dist = "1.2"`, `allow = [...]`, `deny = [...]`."""

    local: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> UserRegistry:
        import tomllib

        try:
            data = tomllib.loads(path.read_text())
        except OSError as error:
            raise PluginError(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise PluginError(f"{path}: {error}") from error
        unknown = set(data) - {*KINDS, "allow", "deny", "pins"}
        if unknown:
            raise PluginError(
                f"{path}: unknown section {sorted(unknown)[0]!r}; valid: {', '.join(KINDS)}, allow, deny, pins"
            )
        tables = {name: _strings(path, name, data[name], dict) for name in (*KINDS, "pins") if name in data}
        lists = {name: tuple(_strings(path, name, data[name], list)) for name in ("allow", "deny") if name in data}
        return cls(pins=tables.pop("pins", {}), local=tables, **lists)

    def admits(self, dist: str) -> bool:
        """Whether plugins of this distribution may be imported. Names are compared as pip does."""
        name = _canonical(dist)
        if name in map(_canonical, self.deny):
            return False
        return not self.allow or name in map(_canonical, (*self.allow, "plugym", "local"))

    def pin(self, dist: str) -> str | None:
        """The version that this distribution must have."""
        return {_canonical(name): version for name, version in self.pins.items()}.get(_canonical(dist))


def _strings(path: Path, name: str, value: Any, shape: type[Any]) -> Any:
    """A table or list of strings, as read; a slip here must not quietly admit a plugin."""
    if not isinstance(value, shape):
        raise PluginError(f"{path}: {name} must be a {'table' if shape is dict else 'list of names'}, got {value!r}")
    values: list[Any] = list(value.values()) if isinstance(value, dict) else list(value)
    if not all(isinstance(item, str) for item in values):
        raise PluginError(f"{path}: {name} must hold strings only, got {value!r}")
    return value


class Registry:
    """All plugins of this Python environment, plus a user's additions."""

    def __init__(self, user: UserRegistry | None = None) -> None:
        self.user = user or UserRegistry()
        self._plugins: dict[str, dict[str, list[PluginInfo]]] = {kind: {} for kind in KINDS}
        for point in _entry_points():
            kind = point.group.removeprefix("plugym.")
            dist = point.dist.name if point.dist else "unknown"
            version = point.dist.version if point.dist else ""
            if kind not in self._plugins:
                continue
            self._add(PluginInfo(kind, point.name, dist, version, point.value))
        for kind, plugins in self.user.local.items():
            for name, target in plugins.items():
                self._add(PluginInfo(kind, name, "local", "", target))

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
        admitted = [info for info in claims if self.user.admits(info.dist)]
        if not admitted:
            raise PluginError(
                f"{SINGULAR[kind]} {bare!r} comes from {claims[0].dist!r}, which registry.toml does not allow"
            )
        if len(admitted) > 1:
            names = " or ".join(f"{info.name}@{info.dist}" for info in admitted)
            raise PluginError(f"{len(admitted)} plugins are called {bare!r} ({SINGULAR[kind]}): choose {names}")
        info = admitted[0]
        pin = self.user.pin(info.dist)
        if pin is not None and info.version != pin:
            raise PluginError(
                f"registry.toml pins {info.dist}=={pin}, installed is {info.version}: pip install '{info.dist}=={pin}'"
            )
        return info

    def _unknown(self, kind: str, name: str) -> str:
        known = sorted(self._plugins[kind])
        bare, _, dist = name.partition("@")
        if bare in known:
            homes = " or ".join(f"{info.name}@{info.dist}" for info in self._plugins[kind][bare])
            return f"{SINGULAR[kind]} {bare!r} does not come from {dist!r}: choose {homes}"
        entry = _catalogue().get(kind, {}).get(bare)
        if entry:
            requirement = _requirement(entry)
            return f"{SINGULAR[kind]} {bare!r} is not installed ({entry['summary']}): pip install '{requirement}'"
        text = f"unknown {SINGULAR[kind]} {name!r}"
        import difflib

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
        except (Exception, SystemExit) as error:  # a module that exits on import is broken too
            extra = _missing_extra(info, error)
            raise PluginError(
                f"{info.name} needs 'pip install {extra}' ({error})" if extra else _broken(info, error, "loading")
            ) from error
        return target

    def create(self, kind: str, name: str, settings: Mapping[str, Any] | None = None, *, prefix: str = "") -> Any:
        """Construct a plugin class with validated settings. `prefix` is how its options are spelled (`--env.`)."""
        plugin = self.load(kind, name)
        info = self.find(kind, name)
        config_class = getattr(plugin, "Config", None)
        if not (isinstance(plugin, type) and isinstance(config_class, type)):
            raise PluginError(_broken(info, TypeError("it is not a plugin class with a Config"), "loading"))
        config = validate_settings(config_class, settings or {}, prefix=prefix, owner=name)
        try:
            return plugin(config)
        except PlugymError:
            raise
        except Exception as error:
            raise PluginError(_broken(info, error, "constructing")) from error


def validate_settings(model: type[BaseModel], settings: Mapping[str, Any], *, prefix: str = "", owner: str = "") -> Any:
    """Settings as the plugin's `Config`; problems become one line that lists the valid options."""
    import difflib

    from pydantic import ValidationError

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


def _broken(info: PluginInfo, error: BaseException, doing: str) -> str:
    return (
        f"{SINGULAR[info.kind]} {info.name!r} from {info.dist} is broken: {type(error).__name__}: {error} "
        f"({doing} {info.target})"
    )


def _missing_extra(info: PluginInfo, error: BaseException) -> str | None:
    """What pip would install, where the catalogue knows the module that could not be found."""
    entry = _catalogue().get(info.kind, {}).get(info.name, {})
    missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    known = _canonical(entry.get("distribution", "")) == _canonical(info.dist) and missing in entry.get("needs", ())
    return _requirement(entry) if known else None


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
        # Entry points first: most distributions have none of ours, and reading their metadata would cost more.
        ours = [point for point in dist.entry_points if point.group.startswith("plugym.")]
        if ours:
            points.setdefault(_canonical(dist.metadata["Name"] or ""), ours)
    return [point for name in sorted(points) for point in points[name]]


@cache
def _catalogue() -> dict[str, dict[str, dict[str, Any]]]:
    """The shipped registry.toml: inside the wheel next to this module, at the root in a source checkout."""
    import tomllib

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
