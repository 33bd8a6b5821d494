"""Hooks: what may watch a run (pluggy). Progress, TensorBoard and the trajectory store are hook plugins like any other.

Hooks watch; they never steer. One that raises is reported once and switched off, and the run goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pluggy

from plugym.errors import PluginError
from plugym.trajectory import ScoredGroup

hookspec = pluggy.HookspecMarker("plugym")
hookimpl = pluggy.HookimplMarker("plugym")

log = logging.getLogger("plugym.hooks")


class RunSpecs:
    """The hooks of a run, in the order they are called."""

    @hookspec
    def plugym_run_start(self, run: Any) -> None:
        """The run is composed and about to begin. `run` has `.dir`, `.spec` and `.attempt`."""

    @hookspec
    def plugym_group_scored(self, group: ScoredGroup) -> None:
        """A group was scored, before any shaping."""

    @hookspec
    def plugym_eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation of the weights after `step` updates is done; its groups were handed over before."""

    @hookspec
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        """An update is done."""

    @hookspec
    def plugym_checkpoint(self, path: Path) -> None:
        """A checkpoint is complete at `path`."""

    @hookspec
    def plugym_run_end(self, run: Any, outcome: Mapping[str, Any]) -> None:
        """The run is over; `outcome["status"]` is `done` or `failed`."""


class Hooks:
    """Calls every registered hook plugin, one by one, so that a broken one cannot silence the others.

    >>> class Broken:
    ...     @hookimpl
    ...     def plugym_step_end(self, step, metrics):
    ...         raise OSError("disk full")
    >>> hooks = Hooks({"broken": Broken()})
    >>> hooks.call("plugym_step_end", step=1, metrics={})
    >>> hooks.switched_off
    {'broken': 'OSError: disk full'}
    """

    def __init__(self, plugins: Mapping[str, object]) -> None:
        self._manager = pluggy.PluginManager("plugym")
        self._manager.add_hookspecs(RunSpecs)
        for name, plugin in reversed(list(plugins.items())):  # pluggy calls the last one first
            try:
                self._manager.register(plugin, name=name)
            except pluggy.PluginValidationError as error:
                raise PluginError(f"hook {name!r} is broken: {' '.join(str(error).split())}") from error
        self.switched_off: dict[str, str] = {}

    def call(self, hook: str, **arguments: Any) -> None:
        """Call one hook on all plugins; arguments by name."""
        for implementation in reversed(getattr(self._manager.hook, hook).get_hookimpls()):
            name = implementation.plugin_name
            try:
                accepted = {key: arguments[key] for key in implementation.argnames}
                implementation.function(**accepted)
            except Exception as error:
                self.switched_off[name] = f"{type(error).__name__}: {error}"
                self._manager.unregister(name=name)
                log.warning("hook %r failed in %s and is switched off: %s", name, hook, self.switched_off[name])
