"""Floating-point evaluation of exact values at sample points: a quick way to see that two answers differ.

What belongs here: evaluating the atoms of `exact.py` as complex floats with variables replaced by sample numbers.
A clear difference at one sample point settles that two expressions differ. Agreement proves nothing: it only
earns the pair a look by the algebra worker.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from .exact import Atom, Mono, Poly, Ring, TooLarge, Value, from_key

TOLERANCE = 1e-9  # relative to the sum of the absolute terms
MAX_TERMS = 60  # of a sum or product that is evaluated numerically


class NoNumber(Exception):
    """The expression has no floating-point value here (a pole, an infinite sum)."""


@dataclass(slots=True)
class Sample:
    """One choice of values for the variables: whole numbers from 3 to 8, or fractions between 0.4 and 2.4."""

    ring: Ring  # whose budget the evaluation draws on
    whole: bool
    bound: dict[str, complex] = field(default_factory=dict)
    known: dict[Atom, complex] = field(default_factory=dict)  # values found so far

    def variable(self, name: str) -> complex:
        """The value of a variable: the same each time, different for different names."""
        if name in self.bound:
            return self.bound[name]
        seed = crc32(name.encode())
        return complex(3 + seed % 6) if self.whole else complex(0.4 + (seed % 100_003) / 50_001.5)


SAMPLES = (True, False)


def differs(difference: Poly, ring: Ring) -> bool | None:
    """True when the polynomial is clearly not zero at a sample point, False when it looks like zero, else None.

    Raises TooLarge when a number in it is beyond floating point.
    """
    seen = None
    for whole in SAMPLES:
        try:
            value, scale = _poly(difference, Sample(ring, whole))
        except NoNumber:
            continue
        if abs(value) > TOLERANCE * scale:
            return True
        seen = False
    return seen


def sign(x: Value, ring: Ring) -> int | None:
    """-1, 0 or 1 for a real constant whose sign is clear, else None."""
    q = x.rational()
    if q is not None:
        return (q > 0) - (q < 0)
    if has_variables(x.num) or has_variables(x.den):
        return None
    at = Sample(ring, whole=True)
    try:
        above, scale = _poly(x.num, at)
        below, scale_below = _poly(x.den, at)
    except NoNumber:
        return None
    if abs(above) <= TOLERANCE * scale or abs(below) <= TOLERANCE * scale_below:
        return None
    value = above / below
    return None if abs(value.imag) > TOLERANCE * abs(value) else (1 if value.real > 0 else -1)


def has_variables(poly: Poly) -> bool:
    """Whether anything but numbers and known constants occurs at the top level of a polynomial."""
    return any(not (isinstance(a, int) or a in ("π", "e", "i")) for mono in poly for a, _ in mono)


def _poly(poly: Poly, at: Sample) -> tuple[complex, float]:
    """The value and the sum of the absolute values of the terms."""
    at.ring.spend(len(poly))
    total, scale = 0j, 0.0
    try:
        for mono, c in poly.items():
            term = float(c) * _mono(mono, at)
            total += term
            scale += abs(term)
    except OverflowError:
        raise TooLarge("a number beyond floating point") from None
    except (ZeroDivisionError, ValueError):
        raise NoNumber from None
    if not math.isfinite(scale):
        raise TooLarge("a number beyond floating point")
    return total, scale


def _mono(mono: Mono, at: Sample) -> complex:
    out = 1 + 0j
    for a, e in mono:
        out *= _raised(_atom(a, at), complex(e))
    return out


def _raised(base: complex, exponent: complex) -> complex:
    if base == 0:
        if exponent.real <= 0:
            raise NoNumber
        return 0j
    return cmath.exp(exponent * cmath.log(base))


def _value(x: Value, at: Sample) -> complex:
    above, _ = _poly(x.num, at)
    below, scale = _poly(x.den, at)
    if abs(below) <= TOLERANCE * scale:
        raise NoNumber
    return above / below


CONSTANTS = {"π": complex(math.pi), "e": complex(math.e), "i": 1j}


def _atom(a: Atom, at: Sample) -> complex:
    value = at.known.get(a)
    if value is None:
        value = at.known[a] = _evaluated(a, at)
    return value


def _evaluated(a: Atom, at: Sample) -> complex:
    if isinstance(a, int):
        return complex(a)
    if isinstance(a, str):
        return CONSTANTS.get(a) or at.variable(a)
    if a[0] == "pow":
        return _raised(_atom(a[1], at), _mono(a[2], at))
    if a[0] == "power":
        return _raised(_value(from_key(a[1]), at), _value(from_key(a[2]), at))
    if a[0] == "root":
        return _poly(dict(a[1]), at)[0]
    if a[0] == "series":
        return _series(a, at)
    arguments = [_value(from_key(key), at) for key in a[2:]]
    known = NUMERIC.get(a[1])
    return known(*arguments) if known else _unknown(a[1], arguments)


def _series(a: tuple[Any, ...], at: Sample) -> complex:
    """A finite sum or product over whole numbers."""
    _, kind, variable, low_key, high_key, body_key = a
    low, high = (_value(from_key(key), at) for key in (low_key, high_key))
    first, last = round(low.real), round(high.real)
    if abs(low - first) > TOLERANCE or abs(high - last) > TOLERANCE or last - first > MAX_TERMS:
        raise NoNumber
    body = from_key(body_key)
    out = 0j if kind == "sum" else 1 + 0j
    for k in range(first, last + 1):
        term = _value(body, Sample(at.ring, at.whole, {**at.bound, variable: complex(k)}))
        out = out + term if kind == "sum" else out * term
    return out


def _unknown(name: str, arguments: list[complex]) -> complex:
    """A function that is nobody's in particular: smooth, and different for different names."""
    mixed = sum(x * (i + 1.7) for i, x in enumerate(arguments, 1))
    return 2.5 + cmath.sin(mixed + crc32(name.encode()) % 1_009)


def _trigonometric(function: Callable[[complex], complex]) -> Callable[[complex], complex]:
    def guarded(x: complex) -> complex:
        if abs(x) > 1e5:  # too few digits are left after the reduction to one turn
            raise NoNumber
        return function(x)

    return guarded


def _log(x: complex) -> complex:
    if x == 0:
        raise NoNumber
    return cmath.log(x)


def _real(function: Callable[[float], float]) -> Callable[[complex], complex]:
    def of_real(x: complex) -> complex:
        if abs(x.imag) > TOLERANCE or abs(x.real - round(x.real)) < TOLERANCE:
            raise NoNumber
        return complex(function(x.real))

    return of_real


def _factorial(x: complex) -> complex:
    if abs(x.imag) > TOLERANCE or x.real < 0:
        raise NoNumber
    return complex(math.gamma(x.real + 1))


def _binomial(n: complex, k: complex) -> complex:
    return _factorial(n) / _factorial(k) / _factorial(n - k)


NUMERIC: dict[str, Callable[..., complex]] = {
    "sin": _trigonometric(cmath.sin),
    "cos": _trigonometric(cmath.cos),
    "ln": _log,
    "log": lambda x: _log(x) / math.log(10),
    "abs": lambda x: complex(abs(x)),
    "floor": _real(math.floor),
    "ceil": _real(math.ceil),
    "arcsin": cmath.asin,
    "arccos": cmath.acos,
    "arctan": cmath.atan,
    "sinh": cmath.sinh,
    "cosh": cmath.cosh,
    "tanh": cmath.tanh,
    "factorial": _factorial,
    "binomial": _binomial,
}
