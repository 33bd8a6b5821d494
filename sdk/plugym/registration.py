"""Environment plugins as gymnasium ids. `import plugym` runs this, so it imports gymnasium and metadata and no more."""

from __future__ import annotations

import re

import gymnasium

from plugym.registry import registry


def gym_id(name: str) -> str:
    """The gymnasium id of a plugin name.

    >>> gym_id("math"), gym_id("my_shop-game"), gym_id("tic.tac toe")
    ('plugym/Math-v0', 'plugym/MyShopGame-v0', 'plugym/TicTacToe-v0')
    """
    words = re.split(r"[\W_]+", name)  # an entry point may have any name, a gymnasium id may not
    return f"plugym/{''.join(word[:1].upper() + word[1:] for word in words)}-v0"


def register_envs() -> None:
    """Register every environment plugin with gymnasium. Reads metadata only; a name claimed twice fails at `make`."""
    for name in sorted({info.name for info in registry().plugins("envs")}):
        identifier = gym_id(name)
        if identifier not in gymnasium.registry:
            gymnasium.register(
                id=identifier, entry_point="plugym.gym:make_env", kwargs={"plugin": name}, disable_env_checker=True
            )
