"""The work of the verifier benchmark and its measure, for both graders: standard library only. `main(grade, ...)` reads
the command line, grades every case in passes with cold caches, and prints the one JSON object.
"""

from __future__ import annotations

import functools
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Grade = Callable[[str, str, bool], bool]
"""(gold, text, whether it is a whole model answer) to the verdict."""


def forget(packages: tuple[str, ...]) -> None:
    """Empty every lru_cache that was made in these packages."""
    for thing in gc.get_objects():
        if isinstance(thing, functools._lru_cache_wrapper) and str(thing.__module__).startswith(packages):
            thing.cache_clear()


def main(grade: Grade, packages: tuple[str, ...], cpu: Callable[[], float] = time.process_time) -> None:
    """Arguments: CASES PASSES. `cpu` counts the seconds of everybody who works."""
    cases: list[dict[str, Any]] = json.loads(Path(sys.argv[1]).read_text())
    grade("1", "1", False)  # imports, and the worker's start
    speeds, right = [], 0
    for _ in range(int(sys.argv[2])):
        forget(packages)
        before = cpu()
        verdicts = [grade(case["gold"], case["pred"], case["whole"]) for case in cases]
        speeds.append(len(cases) / (cpu() - before))
        right = sum(verdict is case["expected"] for verdict, case in zip(verdicts, cases, strict=True))
    print(json.dumps({"answers_per_cpu_s": round(statistics.median(speeds), 1), "right": right}))
