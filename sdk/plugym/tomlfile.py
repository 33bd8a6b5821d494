"""Writing TOML (the standard library only reads it): just what a run's config.toml needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def dump_toml(data: Mapping[str, Any]) -> str:
    """TOML text of nested tables of scalars, lists and dictionaries; None is written as the string "null".

    >>> print(dump_toml({"model": "tiny", "env": {"name": "math", "level": 1}}), end="")
    model = "tiny"
    <BLANKLINE>
    [env]
    name = "math"
    level = 1
    """
    lines = [f"{_key(k)} = {_toml(v)}" for k, v in data.items() if not isinstance(v, Mapping)]
    _tables(data, "", lines)
    return "\n".join(lines).lstrip("\n") + "\n"


def _tables(data: Mapping[str, Any], prefix: str, lines: list[str]) -> None:
    for key, value in data.items():
        if isinstance(value, Mapping):
            path = f"{prefix}{_key(key)}"
            lines += ["", f"[{path}]"]
            lines += [f"{_key(k)} = {_toml(v)}" for k, v in value.items() if not isinstance(v, Mapping)]
            _tables(value, f"{path}.", lines)


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _quoted(key)


def _quoted(text: str) -> str:
    """A basic string; JSON's escapes are TOML's, but for the delete character, which only TOML forbids."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _toml(value: Any) -> str:
    if value is None:
        return '"null"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return _quoted(str(value))
