"""Whether two answer trees say the same: gold first.

What belongs here: equality of quantities (exactly, by sample points, or left to the algebra worker), of lists,
sets, tuples, intervals, unions, equations and matrices. Where exact arithmetic proves neither equality nor
difference, the pair of sources is appended to `Comparison.pending` and counts as equal provided that the algebra
worker confirms it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from .exact import PRIME_BOUND, Atom, Poly, Power, Ring, TooLarge, Value, number
from .numeric import differs
from .structures import Answer, Items, Literal, Matrix, Named, Opaque, Quantity, Relation, Union
from .units import NEUTRAL, PERCENT, Unit

MAX_ALGEBRA_LENGTH = 500
_TOO_HARD = re.compile(r"\d{40}|\^[{(]*[\d.]+[})]*\^|\^[{(]*[\d.]+\^|\d{4,}[})]*!|\^\{?\d{5,}")


def equal_values(a: Value, b: Value, ring: Ring) -> bool | None:
    """True or False where that is certain, None where only algebra could tell. Raises TooLarge.

    >>> from .expr import evaluate
    >>> ring = Ring()
    >>> equal_values(evaluate("(x+1)^2", ring), evaluate("x^2+2x+1", ring), ring)
    True
    """
    difference = ring.difference(a, b)
    if not difference:
        return True
    if _is_independent(difference):
        return False
    return False if differs(difference, ring) else None


def _is_independent(poly: Poly) -> bool:
    """Whether the atoms are linearly independent over the rationals, so that a polynomial in them is not zero.

    True of variables, of fractional powers of distinct primes, of i, and of π or e alone (whether π and e are
    algebraically independent is an open question).
    """
    seen = set()
    for mono in poly:
        for a, e in mono:
            if isinstance(a, int):
                if not (0 < e < 1 and a < PRIME_BOUND**2):
                    return False
            elif isinstance(a, str):
                seen.add(a)
            else:
                return False
    return not {"π", "e"} <= seen


class Comparison:
    """One comparison of a gold answer with a predicted one."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self.pending: list[tuple[str, str]] = []

    def same(self, gold: Answer, pred: Answer) -> bool:
        """Whether they are equal, provided that everything in `pending` is. Raises TooLarge."""
        if isinstance(gold, Named) or isinstance(pred, Named):
            return self._named(gold, pred)
        if isinstance(gold, Items) and not isinstance(pred, Items):
            return _is_singleton(gold) and self.same(gold.parts[0], pred)
        if isinstance(pred, Items) and not isinstance(gold, Items):
            return _is_singleton(pred) and self.same(gold, pred.parts[0])
        match gold, pred:
            case Quantity(), Quantity():
                return self._quantities(gold, pred)
            case Items(), Items():
                return self._items(gold, pred)
            case Union(), Union():
                return self._as_sets(gold.parts, pred.parts)
            case Relation(), Relation():
                return gold.sign == pred.sign and self._proportional(gold, pred)
            case Matrix(), Matrix():
                return [len(r) for r in gold.rows] == [len(r) for r in pred.rows] and all(
                    self._in_order(g, p) for g, p in zip(gold.rows, pred.rows, strict=True)
                )
            case Literal(), Literal():
                return _same_literal(gold, pred)
            case Opaque(), Opaque():
                return gold.text == pred.text
        return False

    def _named(self, gold: Answer, pred: Answer) -> bool:
        """`x = 5` equals 5; under two different names only equal equations are equal."""
        if isinstance(gold, Named) and isinstance(pred, Named) and gold.name == pred.name:
            return self.same(gold.answer, pred.answer)
        match [a.relation if isinstance(a, Named) else a for a in (gold, pred)]:
            case [Relation() as g, Relation() as p]:
                return self.same(g, p)
        if isinstance(gold, Named) and isinstance(pred, Named):
            return False
        bare = [a.answer if isinstance(a, Named) else a for a in (gold, pred)]
        return self.same(bare[0], bare[1])

    # -- quantities -------------------------------------------------------------------------------------------

    def _quantities(self, gold: Quantity, pred: Quantity) -> bool:
        if gold.value is None or pred.value is None:
            return gold.source == pred.source or self._leave_to_algebra(gold, pred)
        undecided = False
        for (v, unit), (w, other) in self._readings(gold, pred):
            equal = self._with_units(v, unit, w, other)
            if equal:
                return True
            undecided = undecided or equal is None
        return undecided and self._leave_to_algebra(gold, pred)

    @staticmethod
    def _readings(gold: Quantity, pred: Quantity) -> list[tuple[tuple[Value, Unit | None], tuple[Value, Unit | None]]]:
        """What the two may mean: "5 m" is five metres only beside another length or a bare number in the gold."""
        assert gold.value is not None
        assert pred.value is not None
        plain_gold, plain_pred = (gold.value, gold.unit), (pred.value, pred.unit)
        readings = [(plain_gold, plain_pred)]
        if pred.loose and (gold.unit or gold.value.rational() is not None):
            readings.append((plain_gold, pred.loose))
        if gold.loose and pred.unit:
            readings.append((gold.loose, plain_pred))
        return readings

    def _with_units(self, v: Value, unit: Unit | None, w: Value, other: Unit | None) -> bool | None:
        if (unit == PERCENT) != (other == PERCENT):
            if unit not in (None, NEUTRAL, PERCENT) or other not in (None, NEUTRAL, PERCENT):
                return False
            hundredth = number(Fraction(1, 100))
            scaled = (self._ring.times(v, hundredth), w) if unit == PERCENT else (v, self._ring.times(w, hundredth))
            outcomes = equal_values(v, w, self._ring), equal_values(*scaled, self._ring)
            return True if True in outcomes else (None if None in outcomes else False)
        if unit is None or other is None or NEUTRAL in (unit, other) or unit == other:
            return equal_values(v, w, self._ring)
        if unit.dimensions != other.dimensions:
            return False
        return equal_values(
            self._ring.times(v, number(unit.factor)), self._ring.times(w, number(other.factor)), self._ring
        )

    def _leave_to_algebra(self, gold: Quantity, pred: Quantity) -> bool:
        for source in (gold.source, pred.source):
            if len(source) > MAX_ALGEBRA_LENGTH or _TOO_HARD.search(source):
                raise TooLarge("too large for algebra")
        if gold.unit and pred.unit and gold.unit != pred.unit:
            return False
        self.pending.append((gold.source, pred.source))
        return True

    # -- collections ------------------------------------------------------------------------------------------

    def _items(self, gold: Items, pred: Items) -> bool:
        if gold.unordered and pred.unordered:
            return self._as_sets(gold.parts, pred.parts)
        if not _brackets_agree(gold, pred):
            return False
        return self._in_order(gold.parts, pred.parts)

    def _in_order(self, gold: Sequence[Answer], pred: Sequence[Answer]) -> bool:
        return len(gold) == len(pred) and all(self.same(g, p) for g, p in zip(gold, pred, strict=True))

    def _as_sets(self, gold: Sequence[Answer], pred: Sequence[Answer]) -> bool:
        """Each has its equal on the other side."""
        return all(self._has_equal(g, pred, gold_first=True) for g in gold) and all(
            self._has_equal(p, gold, gold_first=False) for p in pred
        )

    def _has_equal(self, one: Answer, others: Sequence[Answer], *, gold_first: bool) -> bool:
        """A certain match if there is one, else the first that algebra may confirm."""
        before, possible = self.pending, None
        for other in others:
            self.pending = []
            matches = self.same(one, other) if gold_first else self.same(other, one)
            found, self.pending = self.pending, before
            if matches and not found:
                return True
            if matches and possible is None:
                possible = found
        if possible is not None:
            self.pending.extend(pair for pair in possible if pair not in self.pending)
        return possible is not None

    def _proportional(self, gold: Relation, pred: Relation) -> bool:
        """Whether one equation is a multiple of the other (a positive multiple for an inequality)."""
        a, b = _without_inverses(gold.difference), _without_inverses(pred.difference)
        if not a or not b or a.keys() != b.keys():
            return not a and not b
        ratios = {a[mono] / b[mono] for mono in a}
        return len(ratios) == 1 and (gold.sign in "=≠" or min(ratios) > 0)


def _without_inverses(poly: Poly) -> Poly:
    """The polynomial times the least powers of its variables that leave no negative exponent: y = 1/x is xy = 1."""
    least: dict[Atom, Power] = {}
    for mono in poly:
        for a, e in mono:
            if e < 0:
                least[a] = min(e, least.get(a, 0))
    if not least:
        return poly
    lifted = {}
    for mono, c in poly.items():
        powers = dict(mono)
        for a, e in least.items():
            powers[a] = powers.get(a, 0) - e
        lifted[frozenset((a, e) for a, e in powers.items() if e)] = c
    return lifted


def _is_singleton(items: Items) -> bool:
    return items.opener == "⦃" and len(items.parts) == 1


def _same_literal(gold: Literal, pred: Literal) -> bool:
    """Part by part; a.m. or p.m. may be omitted like a unit."""
    *g, g_half = gold.parts
    *p, p_half = pred.parts
    return gold.kind == pred.kind and g == p and (g_half == p_half or (gold.kind == "clock" and "" in (g_half, p_half)))


def _brackets_agree(gold: Items, pred: Items) -> bool:
    """The same brackets; a bare list may also stand for a tuple in the same order."""
    kinds = {gold.opener + gold.closer, pred.opener + pred.closer}
    return len(kinds) == 1 or kinds == {"", "()"} or (kinds == {"", "[]"} and len(gold.parts) != 2)
