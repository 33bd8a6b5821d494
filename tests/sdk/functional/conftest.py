"""Makes the modules of tests/oracle importable; the script there runs with the same search path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "oracle"))
