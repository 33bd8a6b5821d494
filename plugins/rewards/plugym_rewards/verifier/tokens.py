"""Tokens of a normalised expression, and the numbers among them.

What belongs here: splitting a text into numbers, commands, letters and single characters, and reading decimal,
scientific (3e5) and repeating (0.1\\overline{6}) numbers exactly. The grammar over the tokens is `expr.py`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from .exact import Ring, TooLarge, Unreadable, Value, number
from .functions import FUNCTIONS
from .normalize import GREEK

MAX_DIGITS = 4_300  # Python's own limit for int(str)
LETTERS = frozenset(GREEK.values())
BRACKETS = {"(": ")", "[": "]", "{": "}", "⌊": "⌋", "⌈": "⌉"}
ONLY_ALGEBRA = frozenset(("\\int", "\\iint", "\\oint", "\\lim", "\\prod", "\\sum"))


class Token(NamedTuple):
    kind: str  # number | repeating | name | command | char
    text: str


_TOKEN = re.compile(
    r"(?P<repeating>\d*\.\d*\\overline\{\d+\})|(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<command>\\[A-Za-z]+)|(?P<name>[A-Za-z]+)|(?P<char>\S)"
)
_REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\{(\d+)\}")
_NAMES = (*sorted(FUNCTIONS, key=len, reverse=True), "sqrt", "pi")
_DIFFERENTIAL = re.compile(r"d ?[A-Za-zα-ω](?![A-Za-z])")
_SIGNS = LETTERS | frozenset("+-*/^_!=→∞")  # = in the lower bound of a sum, → in a limit
_COMMANDS = ONLY_ALGEBRA | {f"\\{name}" for name in (*FUNCTIONS, "frac", "sqrt", "binom", "pi")}


def tokenize(text: str) -> list[Token]:
    """Split a normalised expression; raises TooLarge for a number of more than 4,300 digits."""
    tokens: list[Token] = []
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "char"
        found = match[0]
        if kind in ("number", "repeating") and len(found) > MAX_DIGITS:
            raise TooLarge("a number of more than 4,300 digits")
        if kind == "name":
            tokens.extend(_split_name(found))
        else:
            tokens.append(Token(kind, found))
    return tokens


def _split_name(run: str) -> list[Token]:
    """A run of letters: a function name, or up to three variables side by side."""
    for name in _NAMES:
        if run == name:
            return [Token("command", "\\" + name)]
    if len(run) > 3:
        for name in _NAMES:
            if run.startswith(name) and len(name) > 2 and len(run) - len(name) <= 2:
                return [Token("command", "\\" + name), *(Token("name", c) for c in run[len(name) :])]
        raise Unreadable(f"the word {run[:40]!r} in an expression")
    return [Token("name", c) for c in run]


def parse_number(text: str, ring: Ring) -> Value:
    """A decimal number, with an exponent where it has one (3e5)."""
    mantissa, _, exponent = text.lower().partition("e")
    value = number(Fraction(mantissa.rstrip(".") or "0"))
    if not exponent:
        return value
    if len(exponent) > 9:
        raise TooLarge("an exponent of more than nine digits")
    return ring.times(value, ring.power(number(10), number(int(exponent))))


def is_well_formed(text: str) -> bool:
    """Whether every token is known and all brackets are closed: what may be handed to algebra unread.

    Parsers of LaTeX tend to return the part that they understood.
    """
    if "\\int" in text and not _DIFFERENTIAL.search(text):
        return False
    expected: list[str] = []
    for kind, found in tokenize(text):
        if found in BRACKETS:
            expected.append(BRACKETS[found])
        elif found in ")]}⌋⌉":
            if not expected or expected.pop() != found:
                return False
        elif (kind == "char" and found not in _SIGNS) or (kind == "command" and found not in _COMMANDS):
            return False
    return not expected


def repeating_decimal(text: str) -> Fraction:
    """0.1\\overline{6} = 1/6."""
    whole, fixed, period = _REPEATING.findall(text)[0]
    start = Fraction(int((whole + fixed) or "0"), 10 ** len(fixed))
    return start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
