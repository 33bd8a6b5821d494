"""Settings on the command line: `--a.b.c VALUE` in the layers of a run, and the options every composing verb shares.

What a setting means is decided by the model that owns it (`plugym.config`, a plugin's `Config`); here flags become
layers, and a flag that fits nothing is refused with the closest one.
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import plugym.registry
from plugym.config import ALIASES, Layers, RunSpec, environment_layer, file_layer, flag_layer
from plugym.errors import BadInput
from plugym.registry import Registry, UserRegistry, registry, use_registry, validate_settings
from plugym.runner import Runner
from plugym_runners.recipes import recipe_path

FREE = {"ignore_unknown_options": True}
"""click settings of a command that takes settings: what it does not know itself ends up in `flags`."""

Flags = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a composition comes from: the arguments shared by `runner` and `runner doctor`."""

    flags: tuple[str, ...]
    recipe: str | None
    config: Path | None
    registry: Path | None

    @property
    def given(self) -> bool:
        return bool(self.flags or self.recipe or self.config)

    def layers(self) -> Layers:
        """All layers but the defaults; the user's registry.toml is in use from here on.

        Raises `BadInput` with one line.
        """
        command = click.get_current_context().command
        flags = read_flags(self.flags)
        for key, _ in flags:
            _check_known(f"--{key}", _names(command))
        use_registry_file(self.registry or (beside(self.config) if self.config else None))
        layers = Layers()
        if self.recipe is not None:
            layers.add(file_layer(recipe_path(self.recipe)), f"recipe {self.recipe}")
        if self.config is not None:
            layers.add(file_layer(self.config), str(self.config))
        layers.add(environment_layer(), "environment")
        layers.add(flag_layer(flags), "flag")
        return layers


def use_registry_file(path: Path | None) -> None:
    """Look plugins up in the user's registry.toml too, from here on. Raises `BadInput`."""
    if path is None:
        return
    use_registry(Registry(UserRegistry.read(path)))
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # last: a file of the user's must not hide a module of somebody else's


registry_option = click.option(
    "--registry", type=click.Path(path_type=Path), metavar="FILE", help="your own registry.toml"
)


def composing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the options that say what is composed, handed on as one `source`."""

    @functools.wraps(command)
    def with_source(
        flags: tuple[str, ...], recipe: str | None, config: Path | None, registry: Path | None, **others: Any
    ) -> Any:
        return command(source=Source(flags, recipe, config, registry), **others)

    file = click.Path(path_type=Path)
    for decorate in (
        registry_option,
        click.option("--config", type=file, metavar="FILE", help="run file (TOML)"),
        click.option("--recipe", metavar="NAME", help="start from a shipped run"),
        click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[--SETTING VALUE]..."),
    ):
        with_source = decorate(with_source)
    return with_source


def read_flags(args: Sequence[str]) -> Flags:
    """`--key value` and `--key=value` to pairs. Raises `BadInput` for anything else.

    >>> read_flags(["--env", "math", "--env.level=2", "--train.lr", "-1"])
    [('env', 'math'), ('env.level', '2'), ('train.lr', '-1')]
    """
    flags: Flags = []
    rest = list(args)
    while rest:
        key, equals, value = rest.pop(0).partition("=")
        if not key.startswith("--") or key == "--":
            raise BadInput(f"unexpected argument {key!r}: settings are written --name VALUE, and a verb comes first")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise BadInput(f"option {key} needs a value; yes-or-no options too: {key} true")
            value = rest.pop(0)
        flags.append((key.removeprefix("--"), value))
    return flags


def _check_known(option: str, others: Sequence[str]) -> None:
    """Refuse a setting whose first part fits nothing; `others` are options it may have meant."""
    key = option.removeprefix("--")
    if key in ALIASES or key.replace("-", "_").partition(".")[0] in RunSpec.model_fields:
        return
    valid = [*(f"--{name}" for name in (*RunSpec.model_fields, *ALIASES)), *others]
    close = difflib.get_close_matches(option, valid, n=1)
    hint = f"; did you mean {close[0]}?" if close else "."
    raise BadInput(f"unknown option {option}{hint} Valid options: {', '.join(valid)}")


def _names(command: click.Command) -> list[str]:
    return [name for parameter in command.params for name in parameter.opts if name.startswith("--")]


def beside(config: Path) -> Path | None:
    """The registry.toml next to a run file, unless it is the catalogue at the root of a source checkout."""
    path = config.parent / "registry.toml"
    catalogue = Path(plugym.registry.__file__).parents[2] / "registry.toml"
    return path if path.is_file() and not (catalogue.is_file() and path.samefile(catalogue)) else None


def make_runner(spec: RunSpec) -> Runner:
    """The chosen runner with its settings validated. Raises `BadInput`.

    Names are looked up first: a misspelled one is said before anything heavy is imported.
    """
    for kind, plugin in _plugins_of(spec):
        registry().find(kind, plugin)
    if spec.backend.settings:
        raise BadInput(
            f"unknown option --backend.{next(iter(spec.backend.settings))}: a runner's options are --train.*"
        )
    name = spec.backend.name
    cls = registry().load("runners", name)
    settings = validate_settings(cls.Config, spec.train, prefix="--train.", owner=f"runner {name!r}")
    runner: Runner = cls(spec, settings)
    return runner


def _plugins_of(spec: RunSpec) -> list[tuple[str, str]]:
    named = [("envs", spec.env.name), ("algos", spec.algo.name), ("runners", spec.backend.name)]
    named += [("rewards", entry.plugin) for entry in spec.reward.values()]
    return [*named, ("engines", spec.engine.name), *(("hooks", name) for name in spec.run.hooks)]
