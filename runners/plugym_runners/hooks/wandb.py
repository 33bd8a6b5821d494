"""Metrics to Weights & Biases (extra `wandb`); with `WANDB_MODE=offline` into `wandb/` of the run directory only.

What W&B is told is decided here: metrics, the resolved settings and how the run ended. How it is reached (account,
server, mode) is the business of the wandb library and its own variables; this module never looks at a key.
"""

from __future__ import annotations

import math
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from plugym.errors import PluginError
from plugym.hooks import hookimpl
from plugym.runner import RunInfo

PROJECT = "plugym"
"""Where runs go unless `WANDB_PROJECT` says otherwise."""

_PRIVATE = re.compile(r"(^|_)(key|secret|password|credentials?|authorization|auth_token|access_token|headers)$", re.I)
"""Names of settings whose values are nobody else's business, whatever they hold."""


class WandbHook:
    """Logs every finite metric of a step and of an evaluation, by training step.

    One run directory is one W&B run: a resumed run goes on under the same id, and what it repeats is dropped by W&B.
    Nothing of the machine is sent: no command line, source code, git state or terminal output.
    """

    def __init__(self) -> None:
        self._run: Any = None

    @hookimpl
    def plugym_run_start(self, run: RunInfo) -> None:
        """Raises `PluginError` where wandb is missing: a hook that raises is reported once and switched off."""
        try:
            import wandb
        except ImportError as error:
            raise PluginError("wandb needs 'pip install plugym[wandb]'") from error
        settings = wandb.Settings(
            console="off", disable_code=True, disable_git=True, x_disable_meta=True, x_disable_stats=True, quiet=True
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run.dir),
            id=_run_id(run.dir),
            name=run.dir.name,
            config=without_private(run.spec.model_dump(mode="json")),
            resume="allow",
            settings=settings,
        )

    @hookimpl
    def plugym_eval_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)

    @hookimpl
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        self._log(step, metrics)

    @hookimpl
    def plugym_run_end(self, outcome: Mapping[str, Any]) -> None:
        self._run.summary.update({name: outcome[name] for name in ("status", "steps") if name in outcome})
        self._run.finish(exit_code=0 if outcome["status"] == "done" else 1)

    def _log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)


def _run_id(folder: Path) -> str:
    """The W&B id of a run directory: made once, then kept beside W&B's own files."""
    path = folder / "wandb" / "run-id"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(secrets.token_hex(4))
    return path.read_text()


def without_private(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with every value left out whose name says that it may be a secret.

    >>> without_private({"engine": {"api_key": "sk-1", "max_tokens": 8}})
    {'engine': {'api_key': '(left out)', 'max_tokens': 8}}
    """
    return {name: "(left out)" if _PRIVATE.search(name) else _cleaned(value) for name, value in settings.items()}


def _cleaned(value: Any) -> Any:
    if isinstance(value, Mapping):
        return without_private(value)
    return [_cleaned(item) for item in value] if isinstance(value, list) else value
