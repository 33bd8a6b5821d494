"""Makes the shared strategies and the tools of fuzzing importable."""

import sys
from pathlib import Path

for folder in (Path(__file__).parent / "helpers", Path(__file__).parents[1] / "sdk" / "helpers"):
    sys.path.insert(0, str(folder))
