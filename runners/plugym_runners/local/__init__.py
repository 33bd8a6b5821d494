"""The `local` runner: an embedded torch learner and engine in one process, on a CPU or one GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugym_runners.local.runner import LocalRunner

__all__ = ["LocalRunner"]


def __getattr__(name: str) -> Any:
    if name != "LocalRunner":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from plugym_runners.local.runner import LocalRunner

    return LocalRunner
