"""Named functions on exact values: trigonometry, logarithms, absolute value, rounding, factorials, binomials.

What belongs here: what `apply(ring, "sin", x)` gives as an exact `Value`. Where a value is known (sin 30 degrees,
ln 6 = ln 2 + ln 3, floor 8.9) it is returned; otherwise the function stays an atom `("fn", name, key of x)` that is
compared as it stands, numerically (`numeric.py`) and at last by the algebra worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from .exact import UNIT_POLY, Key, Mono, Ring, TooLarge, Unreadable, Value, atom, from_key, number
from .numeric import sign

MAX_FACTORIAL = 3_000
MAX_MULTIPLE = 8  # sin(8x) is expanded in sin x and cos x
HALF, QUARTER = Fraction(1, 2), Fraction(1, 4)
PI: Mono = frozenset([("π", 1)])


def apply(ring: Ring, name: str, x: Value) -> Value:
    """The function `name` of x; raises TooLarge for a factorial beyond the guard.

    >>> apply(Ring(), "floor", number(Fraction(89, 10))).rational()
    Fraction(8, 1)
    """
    return FUNCTIONS[name](ring, x)


def opaque(name: str, x: Value) -> Value:
    """A function value that is compared by its name and argument only."""
    return atom(("fn", name, x.key()))


def _is_negative_term(x: Value) -> bool:
    return len(x.num) == 1 and next(iter(x.num.values())) < 0


def _half_turns(x: Value) -> Fraction | None:
    """x / π where that is rational."""
    if len(x.num) == 1 and x.den is UNIT_POLY:
        ((mono, c),) = x.num.items()
        return c if mono == PI else None
    return None if x.num else Fraction(0)


def _sine_of_turn(ring: Ring, r: Fraction) -> Value | None:
    """sin(r π) for the angles of the usual table (multiples of 30 and 45 degrees)."""
    r %= 2
    if r >= 1:
        mirrored = _sine_of_turn(ring, r - 1)
        return ring.negated(mirrored) if mirrored else None
    square = {
        Fraction(0): Fraction(0),
        Fraction(1, 6): QUARTER,
        QUARTER: HALF,
        Fraction(1, 3): 3 * QUARTER,
        HALF: Fraction(1),
    }.get(min(r, 1 - r))
    return None if square is None else ring.power(number(square), number(HALF))


def sine(ring: Ring, x: Value) -> Value:
    r = _half_turns(x)
    known = _sine_of_turn(ring, r) if r is not None else None
    if known is not None:
        return known
    if _is_negative_term(x):
        return ring.negated(sine(ring, ring.negated(x)))
    parts = _summands(x)
    if parts is None:
        return opaque("sin", x)
    a, b = parts
    return ring.plus(ring.times(sine(ring, a), cosine(ring, b)), ring.times(cosine(ring, a), sine(ring, b)))


def cosine(ring: Ring, x: Value) -> Value:
    r = _half_turns(x)
    known = _sine_of_turn(ring, r + HALF) if r is not None else None
    if known is not None:
        return known
    if _is_negative_term(x):
        return cosine(ring, ring.negated(x))
    parts = _summands(x)
    if parts is None:
        return opaque("cos", x)
    a, b = parts
    return ring.minus(ring.times(cosine(ring, a), cosine(ring, b)), ring.times(sine(ring, a), sine(ring, b)))


def _summands(x: Value) -> tuple[Value, Value] | None:
    """An angle as a sum to expand: a+b, or 2a = a+a. None for a single angle, and for a large multiple."""
    if x.den is not UNIT_POLY:
        return None
    (mono, c), *rest = x.num.items()
    if rest:
        return Value({mono: c}), Value(dict(rest))
    if not 1 < c.numerator <= MAX_MULTIPLE:
        return None
    one = c / c.numerator
    return Value({mono: one}), Value({mono: c - one})


def _logarithm(name: str, base: Fraction | None) -> Callable[[Ring, Value], Value]:
    def log(ring: Ring, x: Value) -> Value:
        """Of a positive rational: the sum over its primes; of e^k: k; of 10^k to base ten: k."""
        q = x.rational()
        if q is not None:
            if q <= 0:
                raise Unreadable("logarithm of a number that is not positive")
            powers = ring.prime_powers(q)
            if base is not None and powers.keys() <= {2, 5} and powers.get(2) == powers.get(5):
                return number(powers.get(2, 0))
            out = number(0)
            for p, v in powers.items():
                out = ring.plus(out, ring.times(number(v), opaque(name, number(p))))
            return out
        if base is None and len(x.num) == 1 and x.den is UNIT_POLY:
            ((mono, c),) = x.num.items()
            if c == 1 and len(mono) == 1:
                ((a, e),) = mono
                if a == "e":
                    return number(Fraction(e))
                if isinstance(a, tuple) and a[:2] == ("pow", "e"):
                    return Value({a[2]: Fraction(e)})
        return opaque(name, x)

    return log


def absolute(ring: Ring, x: Value) -> Value:
    known = sign(x, ring)
    if known is None:
        return opaque("abs", ring.negated(x) if _is_negative_term(x) else x)
    return x if known >= 0 else ring.negated(x)


def _rounded(name: str, rounding: Callable[[Fraction], int]) -> Callable[[Ring, Value], Value]:
    def function(ring: Ring, x: Value) -> Value:
        q = x.rational()
        return opaque(name, x) if q is None else number(rounding(q))

    return function


def factorial(ring: Ring, x: Value) -> Value:
    q = x.rational()
    if q is None:
        return opaque("factorial", x)
    if q < 0 or q.denominator != 1:
        raise Unreadable("factorial of a number that is not a natural number")
    if q > MAX_FACTORIAL:
        raise TooLarge(f"a factorial above {MAX_FACTORIAL}!")
    ring.spend(int(q) >> 2)
    return number(math.factorial(int(q)))


def binomial(ring: Ring, n: Value, k: Value) -> Value:
    """n over k for natural numbers within the guard; an atom otherwise."""
    above, below = n.rational(), k.rational()
    if above is None or below is None or above.denominator != 1 or below.denominator != 1 or above < 0:
        return atom(("fn", "binomial", n.key(), k.key()))
    if above > MAX_FACTORIAL:
        raise TooLarge(f"a binomial coefficient of more than {MAX_FACTORIAL}")
    ring.spend(int(above) >> 2)
    return number(math.comb(int(above), int(below)) if below >= 0 else 0)


def exponential(ring: Ring, x: Value) -> Value:
    """e^x, with e^(c ln u) = u^c and e^(r π i) on the unit circle where the angle is in the table."""
    if len(x.num) == 1 and x.den is UNIT_POLY:
        ((mono, c),) = x.num.items()
        if mono == frozenset([("i", 1), ("π", 1)]):
            imaginary, real = _sine_of_turn(ring, c), _sine_of_turn(ring, c + HALF)
            if imaginary is not None and real is not None:
                return ring.plus(real, ring.times(atom("i"), imaginary))
        if len(mono) == 1:
            ((a, e),) = mono
            if isinstance(a, tuple) and a[:2] == ("fn", "ln") and e == 1:
                key: Key = a[2]
                return ring.power(from_key(key), number(c))
    return ring.power(atom("e"), x)


def _ratio(
    above: Callable[[Ring, Value], Value], below: Callable[[Ring, Value], Value]
) -> Callable[[Ring, Value], Value]:
    return lambda ring, x: ring.over(above(ring, x), below(ring, x))


def _one(ring: Ring, x: Value) -> Value:
    return number(1)


def _plain(name: str) -> Callable[[Ring, Value], Value]:
    return lambda ring, x: opaque(name, x)


FUNCTIONS: dict[str, Callable[[Ring, Value], Value]] = {
    "sin": sine,
    "cos": cosine,
    "tan": _ratio(sine, cosine),
    "cot": _ratio(cosine, sine),
    "sec": _ratio(_one, cosine),
    "csc": _ratio(_one, sine),
    "ln": _logarithm("ln", None),
    "log": _logarithm("log", Fraction(10)),
    "lg": _logarithm("log", Fraction(10)),
    "exp": exponential,
    "abs": absolute,
    "floor": _rounded("floor", math.floor),
    "ceil": _rounded("ceil", math.ceil),
    "factorial": factorial,
    **{name: _plain(name) for name in ("arcsin", "arccos", "arctan", "sinh", "cosh", "tanh")},
}
