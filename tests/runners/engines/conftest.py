"""Makes the fake server and the harness importable."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_server import EOS
from harness import CodePoints


@pytest.fixture
def loaded() -> SimpleNamespace:
    """What a runner binds an engine to."""
    return SimpleNamespace(tokenizer=CodePoints(), eos_ids=(EOS,), max_context=512, path=Path("weights"), model=None)
