"""Makes tests/sdk/helpers importable, for the tests and for the child processes that environments are spawned in; and
leaves the registry as it was after a test that installs a distribution of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from plugym.registry import use_registry

sys.path.insert(0, str(Path(__file__).parent / "helpers"))


@pytest.fixture
def own_registry() -> Iterator[None]:
    """The registry may be replaced; it is rebuilt from the real metadata afterwards."""
    yield
    use_registry(None)
