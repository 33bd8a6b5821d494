"""How many answers a CPU second grades: plugym's maths check beside math-verify.

Cases: tests/data/verifier of this repository, and data/math/{grading,hedge}_cases.jsonl under $PLUGYM_SHARED where that
folder is there, without the category `hang` (towers of powers, which math-verify gives up after seconds). Both graders
get the same text: the answer alone in a sentence, or the whole model answer of a response case. Every pass starts with
empty caches (each lru_cache of the grader's modules, and sympy's own); the figure is the median pass. `right` says how
many verdicts are the expected ones: the cases were collected for plugym's verifier, so that is no accuracy estimate.

plugym twice: exact arithmetic alone, and with the worker process that does algebra, whose CPU counts. Floor: 1,000
answers per CPU second, goal 2,000.

    python benchmarks/verifier_speed.py [--passes 5] [--peer-python /path/to/peers/bin/python]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import FOLDER, contend, parser, report

REPOSITORY = FOLDER.parent
FILES = {
    "answers": (REPOSITORY / "tests" / "data" / "verifier", ["answers.jsonl", "responses.jsonl"]),
    "shared": (
        REPOSITORY / os.environ.get("PLUGYM_SHARED", "../shared") / "data" / "math",
        ["grading_cases.jsonl", "hedge_cases.jsonl"],
    ),
}
WHOLE_ANSWERS = {"responses.jsonl", "hedge_cases.jsonl"}
PATHOLOGICAL = {"hang"}


def cases() -> list[dict[str, Any]]:
    """Gold, text, whether the text is a whole model answer, and the expected verdict."""
    found = []
    for folder, names in FILES.values():
        for path in (folder / name for name in names):
            if not path.exists():
                continue
            for row in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
                if row["category"] not in PATHOLOGICAL:
                    found.append({**row, "whole": path.name in WHOLE_ANSWERS})
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--passes", type=int, default=5, help="of plugym; math-verify is played once")
    chosen = options.parse_args()
    work = cases()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "cases.json")
        path.write_text(json.dumps(work))
        results = {
            "plugym": contend(sys.executable, "grade_plugym.py", path, chosen.passes, "exact"),
            "plugym_algebra": contend(sys.executable, "grade_plugym.py", path, chosen.passes, "algebra"),
            "math_verify": contend(chosen.peer_python, "grade_math_verify.py", path, 1, needs="math_verify"),
        }
    report("verifier_speed", results, cases=len(work), passes=chosen.passes)


if __name__ == "__main__":
    main()
