"""Contender of verifier_speed.py: math-verify, as its own examples use it, with its time limits on."""

from __future__ import annotations

import logging

from grading import main
from math_verify import parse, verify
from math_verify.errors import TimeoutException


def grade(gold: str, text: str, whole: bool) -> bool:
    try:
        return bool(verify(parse(f"${gold}$"), parse(text if whole else f"The answer is ${text}$.")))
    except (Exception, TimeoutException):  # its time-out is no Exception
        return False


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(grade, ("math_verify", "latex2sympy2_extended", "sympy"))
