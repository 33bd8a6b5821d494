"""Hooks watch: every one is called, a broken one is reported once and switched off, none steers or kills a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import pytest

from plugym.errors import PluginError
from plugym.hooks import Hooks, hookimpl


class Diary:
    """Takes only the arguments it wants."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    @hookimpl
    def plugym_step_end(self, step: int) -> None:
        self.steps.append(step)


class Breaks:
    calls = 0

    @hookimpl
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self.calls += 1
        raise OSError("disk full")

    @hookimpl
    def plugym_run_end(self, run: Any, outcome: Mapping[str, Any]) -> None:
        raise AssertionError("it was switched off")


def test_a_broken_hook_is_reported_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    first, broken, last = Diary(), Breaks(), Diary()
    hooks = Hooks({"first": first, "broken": broken, "last": last})
    with caplog.at_level(logging.WARNING, "plugym.hooks"):
        for step in (1, 2, 3):
            hooks.call("plugym_step_end", step=step, metrics={})
        hooks.call("plugym_run_end", run=None, outcome={})
    assert first.steps == last.steps == [1, 2, 3]
    assert broken.calls == 1
    assert hooks.switched_off == {"broken": "OSError: disk full"}
    assert [record.getMessage() for record in caplog.records] == [
        "hook 'broken' failed in plugym_step_end and is switched off: OSError: disk full"
    ]


def test_hooks_are_called_in_the_order_they_were_given() -> None:
    order: list[str] = []

    def named(name: str) -> object:
        class Named:
            @hookimpl
            def plugym_checkpoint(self, path: Any) -> None:
                order.append(name)

        return Named()

    Hooks({name: named(name) for name in "abc"}).call("plugym_checkpoint", path=None)
    assert order == ["a", "b", "c"]


def test_a_hook_with_an_argument_that_does_not_exist_is_one_clear_line() -> None:
    class Wrong:
        @hookimpl
        def plugym_step_end(self, step: int, metrik: object) -> None: ...

    with pytest.raises(PluginError) as caught:
        Hooks({"wrong": Wrong()})
    assert "hook 'wrong' is broken" in str(caught.value)
    assert "metrik" in str(caught.value)
    assert "\n" not in str(caught.value)
