"""Contender of verifier_speed.py: plugym's maths. A third argument, `exact` or `algebra`, says what it may use."""

from __future__ import annotations

import sys
import time

import psutil
from grading import main

from plugym_rewards.verifier.algebra import AlgebraPool
from plugym_rewards.verifier.equal import grade, grade_response


def cpu_of_all() -> float:
    """This process and its worker."""
    workers = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return time.process_time() + sum(times.user + times.system for times in workers)


def run(pool: AlgebraPool | None) -> None:
    def verdict(gold: str, text: str, whole: bool) -> bool:
        return (grade_response if whole else grade)(gold, text, algebra=pool).correct

    main(verdict, ("plugym_rewards",), cpu_of_all if pool else time.process_time)


if __name__ == "__main__":
    if sys.argv[3] == "exact":
        run(None)
    else:
        with AlgebraPool() as algebra:
            algebra.start()
            run(algebra)
