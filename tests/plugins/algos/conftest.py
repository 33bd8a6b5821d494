"""Makes `algo_cases` and the modules of tests/oracle importable."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "oracle")]
