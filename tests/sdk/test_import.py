"""`import plugym` is cheap, exports lazily, and none of the heavy libraries comes with it."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import plugym

HEAVY = ("torch", "transformers", "datasets", "pyarrow", "ray", "vllm", "peft", "accelerate", "tensorboard", "aiohttp")
# The torch half of the maths, by name: everything else must do without.
TORCH_HALF = {
    f"plugym.functional.{name}" for name in ("aggregation", "kl", "layout", "logits", "off_policy", "policy", "value")
}


def loaded_by(code: str) -> set[str]:
    """The heavy modules in sys.modules after `code`, in a fresh interpreter."""
    script = f"{code}\nimport sys\nprint([m for m in {HEAVY!r} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(eval(result.stdout, {"__builtins__": {}}))  # noqa: S307 - a list we printed ourselves


def test_no_module_of_the_sdk_brings_a_heavy_library() -> None:
    """All of them in one interpreter, the public names included, without the torch half of the maths."""
    modules = [info.name for info in pkgutil.walk_packages(plugym.__path__, "plugym.")]
    assert len(modules) > 30
    imports = "\n".join(f"import {name}" for name in modules if name not in TORCH_HALF)
    names = "import plugym\nfor name in plugym.__all__: getattr(plugym, name)"
    assert loaded_by(f"{imports}\n{names}") == set()


def test_every_public_name_is_there_and_nothing_else_is_promised() -> None:
    for name in plugym.__all__:
        module = importlib.import_module(plugym._MODULE_OF[name])
        assert getattr(plugym, name) is getattr(module, name)
    assert set(plugym._MODULE_OF) == set(plugym.__all__)
    assert plugym.__all__ == sorted(plugym.__all__)
    assert set(plugym.__all__) <= set(dir(plugym))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        plugym.nonsense  # noqa: B018
