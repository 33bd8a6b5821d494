"""What `plugym.functional` offers, what importing it costs, and that the examples in its docs are true."""

import doctest
import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import plugym.functional

MODULES = [f"plugym.functional.{module.name}" for module in pkgutil.iter_modules(plugym.functional.__path__)]


@pytest.mark.parametrize("name", ["plugym.functional", *MODULES])
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("name", plugym.functional.__all__)
def test_every_public_name_resolves_and_is_listed(name: str) -> None:
    assert getattr(plugym.functional, name) is not None
    assert name in dir(plugym.functional)


def test_public_functions_of_the_modules_are_exported() -> None:
    """A new formula is offered from the package, or it is private. Checks and layout helpers are internal."""
    internal = {"check_mode", "finite_vector", "require_one_per_token"}
    for module in map(import_module, MODULES):
        defined = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and callable(value) and value.__module__ == module.__name__
        }
        assert defined <= {*plugym.functional.__all__, *internal}, module.__name__


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'group_advantage'"):
        _ = plugym.functional.group_advantage


def test_the_numpy_half_does_not_load_torch() -> None:
    """Scoring, reports and `Config` classes use it on machines without torch."""
    script = (
        "import sys\n"
        "from plugym.functional import AggregationMode, gae, group_advantages, overlong_penalty, pass_at_k\n"
        "assert group_advantages([1, 0], scale='none').tolist() == [0.5, -0.5]\n"
        "assert 'torch' not in sys.modules\n"
        "from plugym.functional import log_ratio\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
