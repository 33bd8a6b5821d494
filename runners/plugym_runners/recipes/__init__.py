"""Recipes: whole runs as TOML files that ship with the package. `runner --recipe NAME` starts from one."""

from __future__ import annotations

import difflib
from pathlib import Path

from plugym.errors import BadInput

_HERE = Path(__file__).parent


def recipe_names() -> list[str]:
    """Names of the shipped recipes."""
    return sorted(path.stem for path in _HERE.glob("*.toml"))


def recipe_path(name: str) -> Path:
    """The file of a recipe. Raises `BadInput` for an unknown name, with the closest one."""
    names = recipe_names()
    if name in names:
        return _HERE / f"{name}.toml"
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise BadInput(f"unknown recipe {name!r}{hint} Recipes: {', '.join(names)}")
