"""The shape of an answer: a quantity, a list, a tuple or interval, a union, a relation, a matrix, words.

What belongs here: the dataclasses of an answer tree and `read_answer`, which takes a normalised text apart at its
outermost separators and relation signs and hands the leaves to `units.py` and `expr.py`. Nothing here compares; a
text that cannot be read becomes `Opaque` and equals only its own spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from .exact import UNIT_POLY, Poly, Ring, TooLarge, Unreadable, Value
from .expr import NeedsAlgebra, evaluate
from .functions import FUNCTIONS
from .normalize import GREEK
from .tokens import MAX_DIGITS, is_well_formed, parse_number
from .units import Unit, loose_unit, split_unit

MAX_ITEMS = 64
MAX_NESTING = 6


@dataclass(frozen=True, slots=True)
class Quantity:
    """One expression with its unit. `value` is None where only algebra can evaluate `source`."""

    value: Value | None
    source: str
    unit: Unit | None = None
    loose: tuple[Value, Unit] | None = None  # the second reading of "5 m"


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers. `opener`/`closer` are empty for a bare list, ⦃ ⦄ for a set, ( [ for tuples and intervals."""

    opener: str
    closer: str
    parts: tuple[Answer, ...]

    @property
    def unordered(self) -> bool:
        """Sets and bare lists without an ellipsis have no order."""
        return self.opener in ("", "⦃") and not any(isinstance(p, Opaque) and p.text == "…" for p in self.parts)


@dataclass(frozen=True, slots=True)
class Union:
    """Intervals or sets joined by ∪ (or by "or" between inequalities)."""

    parts: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """`x = answer`, `x ∈ answer`, or an inequality in one variable as the interval it means."""

    name: str
    answer: Answer
    relation: Relation | None = None  # the same as an equation, for comparing with other forms of it


@dataclass(frozen=True, slots=True)
class Relation:
    """`difference sign 0` for sign in = ≠ < ≤."""

    sign: str
    difference: Poly


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of cells."""

    rows: tuple[tuple[Answer, ...], ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A clock time, a ratio or a number with its base: compared part by part."""

    kind: str
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Opaque:
    """Words, or a text that could not be read (`why`): equal to the same text only."""

    text: str
    why: str = ""


Answer: TypeAlias = Quantity | Items | Union | Named | Relation | Matrix | Literal | Opaque

OPENERS, CLOSERS = "([{⦃⟦⌊⌈", ")]}⦄⟧⌋⌉"
FLIPPED = {">": "<", "≥": "≤", "<": ">", "≤": "≥"}

_SEPARATOR = re.compile(r"[(\[{⦃⟦⌊⌈)\]}⦄⟧⌋⌉]|[,;]?\s*(?<![A-Za-z])(?:and|or)(?![A-Za-z])|[,;⏎∨∧]")
_RELATION = re.compile(r"[(\[{⦃⟦⌊⌈)\]}⦄⟧⌋⌉]|[=<>≤≥≠≈∈∉≡→]")
_UNION = re.compile(r"[(\[{⦃⟦⌊⌈)\]}⦄⟧⌋⌉]|[∪]")
_CELL = re.compile(r"[(\[{⦃⟦⌊⌈)\]}⦄⟧⌋⌉]|&|⏎")
_NAME = re.compile(
    r"(?:\\(?:angle|triangle|overline|vec|hat|bar)|[A-Za-zα-ωΑ-Ω'∠ {}]|(?<=[A-Za-zα-ωΑ-Ω])_(?:\w|\{[\w,+-]+\})"
    r"|(?<=[A-Za-z])\([\w,;+-]*\)|^\([A-Za-z,; ]+\)|\^\{?-1\}?(?=\())+"
)
_WORDS = re.compile(r"[^\W\d_]+(?:[ '-]+[^\W\d_]+)*")
_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"([-+]?[1-9]\d{0,2}(?: \d{3})+)(\.\d+)?")
_PLAIN_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)")
_CLOCK = re.compile(r"(?i)(\d{1,6}(?::\d{1,6})+) ?([ap]\.?m\.?)?")
_BASED = re.compile(r"(\d[0-9A-Fa-f.]*)_\{?(\d{1,2})\}?")
_PRODUCT_LETTERS = frozenset("abcdfghjklmnpqrstvwxyz") | frozenset("".join(GREEK.values()).lower())


def read_answer(text: str, ring: Ring, depth: int = 0) -> Answer:
    """The answer tree of a normalised text; raises TooLarge for what the size guard refuses.

    >>> read_answer("x=5", Ring()).name
    'x'
    >>> len(read_answer("1,2,3", Ring()).parts)
    3
    """
    if depth > MAX_NESTING:
        raise TooLarge(f"an answer nested deeper than {MAX_NESTING}")
    plain = _PLAIN_NUMBER.fullmatch(text)
    if plain:
        return Quantity(_decimal(text, ring), text)
    if not text:
        return Opaque("", "it is empty")
    try:
        return _read(_join_thousands(text), ring, depth)
    except Unreadable as problem:
        return Opaque(text, str(problem))


def _read(text: str, ring: Ring, depth: int) -> Answer:
    pieces = list(_split(text, _SEPARATOR))
    if len(pieces) > 1:
        return _several([piece for piece, _ in pieces], [sign for _, sign in pieces[1:]], ring, depth)
    pieces = list(_split(text, _RELATION))
    if len(pieces) > 1:
        return _relation([piece for piece, _ in pieces], [sign for _, sign in pieces[1:]], ring, depth)
    if "∪" in text:
        pieces = list(_split(text, _UNION))
        if len(pieces) > 1:
            return Union(tuple(read_answer(piece, ring, depth + 1) for piece, _ in pieces))
    if text[0] in "([⦃⟦" and text[-1] in ")]⦄⟧" and _encloses(text):
        bracketed = _bracketed(text, ring, depth)
        if bracketed is not None:
            return bracketed
    return _leaf(text, ring)


def _split(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    """Pieces of a text between separators outside all brackets, each with the separator before it."""
    depth, start, before = 0, 0, ""
    for match in pattern.finditer(text):
        sign = match[0]
        if sign in OPENERS:
            depth += 1
        elif sign in CLOSERS:
            depth -= 1
        elif depth == 0:
            yield text[start : match.start()].strip(), before
            start, before = match.end(), sign.strip(" ,;") or sign[0]
    yield text[start:].strip(), before


def _encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last character."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c in OPENERS) - (c in CLOSERS)
        if depth == 0:
            return i == len(text) - 1
    return False


def _several(pieces: list[str], signs: list[str], ring: Ring, depth: int) -> Answer:
    """A list; `x=1,2` gives the name to all, inequalities joined by "or" make a union."""
    if len(pieces) > MAX_ITEMS:
        raise TooLarge(f"a list of more than {MAX_ITEMS} items")
    if not all(pieces):
        raise Unreadable("an empty item in a list")
    parts = tuple(read_answer(piece, ring, depth + 1) for piece in pieces)
    head = parts[0]
    if not isinstance(head, Named):
        return Items("", "", parts)
    values = tuple(p.answer if isinstance(p, Named) and p.name == head.name else p for p in parts)
    if any(isinstance(v, Named) for v in values):
        return Items("", "", parts)
    if all(sign in ("or", "∨") for sign in signs) and all(_is_interval(v) for v in values):
        return Named(head.name, Union(values))
    return Named(head.name, Items("", "", values))


def _is_interval(answer: Answer) -> bool:
    return isinstance(answer, Items) and answer.opener in ("(", "[") and len(answer.parts) == 2


def _relation(pieces: list[str], signs: list[str], ring: Ring, depth: int) -> Answer:
    if not all(pieces):
        raise Unreadable("a relation with one side missing")
    if len(pieces) == 3 and (set(signs) <= {"<", "≤"} or set(signs) <= {">", "≥"}):
        return _between(pieces, signs, ring)
    if len(pieces) != 2:
        raise Unreadable("a chain of relations")
    left, sign, right = pieces[0], signs[0], pieces[1]
    if sign == "∈" and _NAME.fullmatch(left):
        return Named(left, read_answer(right, ring, depth + 1))
    if sign == "=":
        return _equation(left, right, ring, depth)
    if sign in FLIPPED:
        return _inequality(left, sign, right, ring)
    if sign == "≠":
        return Relation(sign, _difference(left, sign, right, ring))
    raise Unreadable(f"the relation {sign}")


def _difference(left: str, sign: str, right: str, ring: Ring) -> Poly:
    """left - right without its denominator, which an inequality must not have (its sign is unknown)."""
    a, b = evaluate(left, ring), evaluate(right, ring)
    if sign in "<≤" and not (a.den is UNIT_POLY and b.den is UNIT_POLY):
        raise Unreadable("an inequality with a variable in a denominator")
    return ring.difference(a, b)


def _equation(left: str, right: str, ring: Ring, depth: int) -> Answer:
    if _is_name(right) and not _is_name(left):
        left, right = right, left
    try:
        relation = Relation("=", _difference(left, "=", right, ring))
    except Unreadable:
        relation = None
    if _is_name(left) and not _is_name(right):
        return Named(_tidy_name(left), read_answer(right, ring, depth + 1), relation)
    if relation is None:
        raise Unreadable("an equation with a side that cannot be read")
    return relation


def _is_name(text: str) -> bool:
    return len(text) <= 40 and _NAME.fullmatch(text) is not None and text not in ("e", "i", "π")


def _tidy_name(text: str) -> str:
    return text.replace("{", "").replace("}", "").replace(" ", "").replace(";", ",")


def _inequality(left: str, sign: str, right: str, ring: Ring) -> Answer:
    """`x < 3` as (-∞, 3) under the name x; with expressions on both sides as a relation."""
    if _is_name(right) and not _is_name(left):
        left, sign, right = right, FLIPPED[sign], left
    if not _is_name(left):
        if sign in ">≥":
            left, sign, right = right, FLIPPED[sign], left
        return Relation(sign, _difference(left, sign, right, ring))
    bound = _leaf(right, ring)
    if sign in "<≤":
        interval = Items("(", ")" if sign == "<" else "]", (_infinite("-∞", ring), bound))
    else:
        interval = Items("(" if sign == ">" else "[", ")", (bound, _infinite("∞", ring)))
    return Named(_tidy_name(left), interval)


def _between(pieces: list[str], signs: list[str], ring: Ring) -> Answer:
    if signs[0] in ">≥":
        pieces, signs = pieces[::-1], [FLIPPED[s] for s in signs[::-1]]
    low, name, high = pieces
    if not _is_name(name):
        raise Unreadable("a chain of relations")
    opener, closer = "(" if signs[0] == "<" else "[", ")" if signs[1] == "<" else "]"
    return Named(_tidy_name(name), Items(opener, closer, (_leaf(low, ring), _leaf(high, ring))))


def _infinite(text: str, ring: Ring) -> Quantity:
    return Quantity(evaluate(text, ring), text)


def _bracketed(text: str, ring: Ring, depth: int) -> Answer | None:
    opener, closer, inner = text[0], text[-1], text[1:-1].strip()
    if opener == "⟦":
        return _matrix(inner, ring, depth)
    if not inner:
        return Items(opener, closer, ())
    pieces = [piece for piece, sign in _split(inner, _SEPARATOR)]
    if len(pieces) == 1 and opener != "⦃":
        return read_answer(inner, ring, depth + 1) if opener + closer in ("()", "[]") else None
    if len(pieces) > MAX_ITEMS:
        raise TooLarge(f"a list of more than {MAX_ITEMS} items")
    if not all(pieces):
        raise Unreadable("an empty item in brackets")
    return Items(opener, closer, tuple(read_answer(piece, ring, depth + 1) for piece in pieces))


def _matrix(inner: str, ring: Ring, depth: int) -> Answer:
    rows: list[list[Answer]] = [[]]
    for piece, sign in _split(inner, _CELL):
        if sign == "⏎":
            rows.append([])
        if piece or sign != "⏎":
            rows[-1].append(read_answer(piece, ring, depth + 1))
    kept = tuple(tuple(row) for row in rows if row)
    if sum(map(len, kept)) > MAX_ITEMS or len({len(row) for row in kept}) != 1:
        raise Unreadable("a matrix with rows of different lengths, or too large")
    return Matrix(kept)


def _join_thousands(text: str) -> str:
    """1,234 is 1234, except inside brackets, where the comma separates."""
    if "," not in text:
        return text
    depths, depth = [], 0
    for c in text:
        depth += (c in OPENERS) - (c in CLOSERS)
        depths.append(depth)
    return _THOUSANDS.sub(lambda m: m[0] if depths[m.start()] else m[0].replace(",", ""), text)


def _decimal(text: str, ring: Ring) -> Value:
    if len(text) > MAX_DIGITS:
        raise TooLarge("a number of more than 4,300 digits")
    return parse_number(text, ring)


def _leaf(text: str, ring: Ring) -> Answer:
    """One expression with its unit, a clock time, a number with a base, plus-minus, words."""
    if text == "…":
        return Opaque(text)
    if text == "∅":
        return Items("⦃", "⦄", ())
    if text == "\\reals":
        return Items("(", ")", (_infinite("-∞", ring), _infinite("∞", ring)))
    if ":" in text and (clock := _CLOCK.fullmatch(text)):
        parts = tuple(str(int(part)) for part in clock[1].split(":"))
        return Literal("clock", (*parts, (clock[2] or "").lower().replace(".", "")))
    if "_" in text and (based := _BASED.fullmatch(text)):
        return Literal("base", (based[1].lower().lstrip("0"), based[2]))
    words = _WORDS.fullmatch(text)
    if words and len(text) > 1 and not _is_product(text):
        return Opaque(text.lower())
    if "±" in text or "∓" in text:
        signs = (("±", "+", "∓", "-"), ("±", "-", "∓", "+"))
        both = (text.replace(a, b).replace(c, d).removeprefix("+") for a, b, c, d in signs)
        return Items("", "", tuple(_leaf(t, ring) for t in both))
    return _quantity(text, ring)


def _is_product(text: str) -> bool:
    """`ab`, `πr` and `sin x` are mathematics; `no` and `red` are words."""
    return all(
        word in FUNCTIONS or word == "pi" or (len(word) <= 3 and _PRODUCT_LETTERS.issuperset(word.lower()))
        for word in text.split(" ")
    )


def _quantity(text: str, ring: Ring) -> Answer:
    amount, unit = split_unit(text)
    spaced = _SPACED_THOUSANDS.fullmatch(amount)
    if spaced:
        amount = amount.replace(" ", "")
    elif "," in amount:
        amount = _join_thousands(amount)
    loose = loose_unit(text)
    try:
        value = evaluate(amount, ring)
    except NeedsAlgebra:
        if not is_well_formed(amount):
            raise
        return Quantity(None, amount, unit)
    second = (evaluate(loose[0], ring), loose[1]) if loose else None
    return Quantity(value, amount, unit, second)
