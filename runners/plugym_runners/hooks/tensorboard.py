"""Metrics as TensorBoard events in `tb/` of the run directory (extra `tensorboard`): `tensorboard --logdir runs`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from plugym.errors import PluginError
from plugym.hooks import hookimpl
from plugym.runner import RunInfo


class TensorBoardHook:
    """Writes every finite metric of a step as a scalar, with TensorBoard's own writer."""

    def __init__(self) -> None:
        self._writer: Any = None

    @hookimpl
    def plugym_run_start(self, run: RunInfo) -> None:
        """Raises `PluginError` where TensorBoard is missing: a hook that raises is reported once and switched off."""
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise PluginError("tensorboard needs 'pip install plugym[tensorboard]'") from error
        self._writer = Writer(str(run.dir / "tb"))

    @hookimpl
    def plugym_step_end(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            if math.isfinite(value):
                self._writer.add_scalar(name, value, step)
        self._writer.flush()

    @hookimpl
    def plugym_run_end(self) -> None:
        self._writer.close()
