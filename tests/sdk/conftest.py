"""Makes tests/sdk/helpers importable, for the tests and for the child processes that environments are spawned in."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "helpers"))
