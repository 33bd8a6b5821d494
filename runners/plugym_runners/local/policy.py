"""Weights to sample from and not to train: a model, a run directory, or a checkpoint with an adapter.

Everything that `models.py` loads, and besides what the local runner writes. Threads are decided here too, because who
loads weights is about to compute with them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from plugym.errors import BadInput
from plugym.store import RunDir
from plugym_runners.local.models import LoadedModel, load_model


def load_policy(spec: str, *, dtype: str = "float32", device: str = "cpu") -> LoadedModel:
    """Load what `spec` names: as `load_model`, or a run directory (its newest checkpoint), or a checkpoint of a run.

    An adapter goes on the model its run was started from, or where no run lies around it, on the one it names itself.
    Raises `BadInput` as `load_model` does, and for a run without a checkpoint or an adapter that does not fit.
    """
    folder = Path(spec).expanduser()
    if (folder / "checkpoints").is_dir() and (folder / "config.toml").is_file():
        newest = RunDir(folder).latest_checkpoint()
        if newest is None:
            raise BadInput(f"model {spec!r} is a run that has no checkpoint yet")
        folder = newest
    if not (folder / "adapter_config.json").is_file():
        return load_model(spec if folder == Path(spec).expanduser() else str(folder), dtype=dtype, device=device)
    loaded = load_model(_base_of(folder), dtype=dtype, device=device)
    loaded.model = _with_adapter(loaded.model, folder)
    loaded.name = spec
    return loaded


def _base_of(adapter: Path) -> str:
    run = RunDir(adapter.resolve().parents[1])
    if run.config_path.is_file():
        return run.read_spec().model
    try:
        base = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{adapter}/adapter_config.json cannot be read: {type(error).__name__}: {error}") from error
    if not base:
        raise BadInput(f"{adapter}/adapter_config.json names no base model: set base_model_name_or_path")
    return str(base)


def _with_adapter(model: Any, folder: Path) -> Any:
    from peft import PeftModel
    from safetensors import SafetensorError

    try:
        return PeftModel.from_pretrained(model, str(folder), use_safetensors=True).eval()
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        problem = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadInput(f"the adapter in {folder} cannot be loaded: {problem}") from error


def use_threads(threads: int) -> None:
    """Let torch compute with so many threads, 0 = one for each physical core this process may use."""
    import torch

    torch.set_num_threads(threads or _physical_cores())


def _physical_cores() -> int:
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, psutil.cpu_count(logical=False) or allowed))
