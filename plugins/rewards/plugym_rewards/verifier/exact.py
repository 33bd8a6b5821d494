"""Exact values: quotients of polynomials with rational coefficients over named atoms.

What belongs here: the arithmetic in which two answers are compared without a computer algebra system. An atom
is a variable (`"x"`), a constant (`"π"`, `"e"`, `"i"`), a prime number (an `int`, so that 2^(1/2) is exact) or a
tuple for something applied (`("fn", "sin", key)`, `("pow", 2, mono)`, `("root", key)`). A monomial maps atoms to
rational exponents, a polynomial maps monomials to `Fraction`s. Parsing is `expr.py`, special functions are
`functions.py`, deciding whether two values are equal is `compare.py`.

Every operation draws on the budget of its `Ring` and every number has a size limit, so hostile input costs
milliseconds: a power too big to write out stays a symbolic power of its primes (2^(3^20) - 2^(3^20) is still 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, isqrt, lcm
from typing import Any, NamedTuple, TypeAlias

Atom: TypeAlias = str | int | tuple[Any, ...]
Power: TypeAlias = int | Fraction
Mono: TypeAlias = frozenset[tuple[Atom, Power]]
Poly: TypeAlias = Mapping[Mono, Fraction]
Key: TypeAlias = tuple[frozenset[tuple[Mono, Fraction]], frozenset[tuple[Mono, Fraction]]]

MAX_BITS = 33_500  # about 10,000 decimal digits
BUDGET = 10_000  # products of two terms that one comparison may cost
PRIME_BOUND = 1_000  # trial division by the primes below it; a rest below its square is prime

UNIT: Mono = frozenset()
UNIT_POLY: Poly = {UNIT: Fraction(1)}
PRIMES = tuple(n for n in range(2, PRIME_BOUND) if all(n % d for d in range(2, isqrt(n) + 1)))


class TooLarge(Exception):
    """The static size guard refused: evaluating this would be too expensive."""


class Unreadable(Exception):
    """The text is not an expression, or has no value (a division by zero)."""


class Value(NamedTuple):
    """`num / den`; `den` is the object `UNIT_POLY` unless a real denominator is needed."""

    num: Poly
    den: Poly = UNIT_POLY

    def rational(self) -> Fraction | None:
        """The value as a `Fraction` where it is a rational number."""
        if not self.num:
            return Fraction(0)
        if self.den is UNIT_POLY and len(self.num) == 1:
            return self.num.get(UNIT)
        return None

    def key(self) -> Key:
        """A hashable form: equal keys mean equal values (not the other way round)."""
        return frozenset(self.num.items()), frozenset(self.den.items())


def from_key(key: Key) -> Value:
    """The value a key was made from."""
    den = dict(key[1])
    return Value(dict(key[0]), UNIT_POLY if den == UNIT_POLY else den)


def number(q: Fraction | int) -> Value:
    """A rational number."""
    return Value({UNIT: Fraction(q)} if q else {})


def atom(a: Atom, power: Power = 1) -> Value:
    """An atom, to a power that needs no reduction."""
    return Value({frozenset([(a, power)]): Fraction(1)})


def factor(n: int) -> dict[int, int]:
    """Prime factors of n > 0. A rest that trial division cannot split stands as one factor."""
    found: dict[int, int] = {}
    for p in PRIMES:
        while n % p == 0:
            found[p] = found.get(p, 0) + 1
            n //= p
        if p * p > n:
            break
    if n > 1:
        root = isqrt(n)
        base, times = (root, 2) if root * root == n else (n, 1)
        found[base] = found.get(base, 0) + times
    return found


def _bits(q: Fraction) -> int:
    return q.numerator.bit_length() + q.denominator.bit_length()


class Ring:
    """Arithmetic on `Value`s within one budget.

    >>> ring = Ring()
    >>> half = ring.power(number(2), number(Fraction(1, 2)))
    >>> ring.times(half, half).rational()
    Fraction(2, 1)
    """

    def __init__(self, budget: int = BUDGET) -> None:
        self._left = budget

    def spend(self, cost: int) -> None:
        """Take `cost` from the budget; raises TooLarge when it is used up."""
        self._left -= cost
        if self._left < 0:
            raise TooLarge("the expression needs too many steps")

    def checked(self, q: Fraction) -> Fraction:
        """`q`, unless it has more digits than the guard allows (TooLarge)."""
        size = _bits(q)
        if size > 256:
            self.spend(size >> 8)
            if size > 2 * MAX_BITS:
                raise TooLarge("a number has more than 10,000 digits")
        return q

    def prime_powers(self, q: Fraction) -> dict[int, int]:
        """q > 0 as a product of prime powers, negative ones from the denominator."""
        self.spend(10 + (_bits(q) >> 3))
        return factor(q.numerator) | {p: -v for p, v in factor(q.denominator).items()}

    # -- sums and products ------------------------------------------------------------------------------------

    def plus(self, a: Value, b: Value) -> Value:
        """a + b."""
        if a.den is b.den or a.den == b.den:
            return self._quotient(self._add(a.num, b.num), a.den)
        num = self._add(self._mul(a.num, b.den), self._mul(b.num, a.den))
        return self._quotient(num, self._mul(a.den, b.den))

    def minus(self, a: Value, b: Value) -> Value:
        """a - b."""
        return self.plus(a, self.negated(b))

    def negated(self, a: Value) -> Value:
        """-a."""
        return Value({m: -c for m, c in a.num.items()}, a.den)

    def times(self, a: Value, b: Value) -> Value:
        """a * b."""
        if a.den is UNIT_POLY and b.den is UNIT_POLY:
            return Value(self._mul(a.num, b.num))
        return self._quotient(self._mul(a.num, b.num), self._mul(a.den, b.den))

    def over(self, a: Value, b: Value) -> Value:
        """a / b; raises Unreadable for b = 0."""
        if not b.num:
            raise Unreadable("division by zero")
        return self._quotient(self._mul(a.num, b.den), self._mul(a.den, b.num))

    def difference(self, a: Value, b: Value) -> Poly:
        """A polynomial that is zero exactly when a = b (where both are defined)."""
        if a.den is b.den:
            return self._add(a.num, {m: -c for m, c in b.num.items()})
        left, right = self._mul(a.num, b.den), self._mul(b.num, a.den)
        return self._add(left, {m: -c for m, c in right.items()})

    def _add(self, a: Poly, b: Poly) -> Poly:
        self.spend(len(b))
        out = dict(a)
        for m, c in b.items():
            total = self.checked(out.get(m, Fraction(0)) + c)
            if total:
                out[m] = total
            else:
                del out[m]
        return out

    def _mul(self, a: Poly, b: Poly) -> Poly:
        if a is UNIT_POLY:
            return b
        if b is UNIT_POLY:
            return a
        self.spend(len(a) * len(b))
        out: dict[Mono, Fraction] = {}
        for m1, c1 in a.items():
            for m2, c2 in b.items():
                c = self.checked(c1 * c2)
                product = {m1 or m2: Fraction(1)} if not (m1 and m2) else self._join(m1, m2)
                for m, k in product.items():
                    out[m] = out.get(m, 0) + c * k
        return {m: c for m, c in out.items() if c}

    def _join(self, m1: Mono, m2: Mono) -> Poly:
        powers = dict(m1)
        for a, e in m2:
            powers[a] = powers.get(a, 0) + e
        return self._reduce(powers)

    def _reduce(self, powers: Mapping[Atom, Power]) -> Poly:
        """A product of atom powers in normal form.

        Whole powers of primes go into the coefficient, i^2 = -1, sin^2 = 1 - cos^2, whole powers of a root become
        the polynomial under it.
        """
        coefficient = Fraction(1)
        keep: dict[Atom, Power] = {}
        extra: list[Poly] = []
        for a, e in powers.items():
            whole = e.numerator // e.denominator
            if isinstance(a, int):
                if whole and abs(whole) * a.bit_length() <= MAX_BITS:
                    coefficient *= Fraction(a) ** whole
                    e -= whole
            elif a == "i" and e == whole:
                coefficient *= (1, 1, -1, -1)[whole % 4]
                e = whole % 2
            elif isinstance(a, str):
                pass
            elif whole >= 2 and a[:2] == ("fn", "sin"):
                cos_squared = frozenset([(("fn", "cos", a[2]), 2)])
                extra.append(self._repeat({UNIT: Fraction(1), cos_squared: Fraction(-1)}, whole // 2))
                e -= whole // 2 * 2
            elif whole >= 1 and a[0] == "root":
                extra.append(self._repeat(dict(a[1]), whole))
                e -= whole
            if e:
                keep[a] = e
        out: Poly = {frozenset(keep.items()): self.checked(coefficient)}
        for poly in extra:
            out = self._mul(out, poly)
        return out

    def _repeat(self, base: Poly, times: int) -> Poly:
        """base ** times for times >= 0, by squaring."""
        if times > 1_000 and len(base) > 1:
            raise TooLarge("the power of a sum is too high to expand")
        out = UNIT_POLY
        while times:
            if times & 1:
                out = self._mul(out, base)
            times >>= 1
            if times:
                base = self._mul(base, base)
        return out

    def _quotient(self, num: Poly, den: Poly) -> Value:
        """num / den; a denominator of one term moves into the exponents, except for atoms that reduce."""
        if not num or den is UNIT_POLY:
            return Value(num)
        if len(den) > 1:
            return Value(num, den)
        ((mono, c),) = den.items()
        stay = {(a, e) for a, e in mono if isinstance(a, tuple) and a[0] in ("fn", "root")}
        inverse = self._reduce({a: -e for a, e in mono if (a, e) not in stay})
        num = self._mul(self._mul(num, inverse), {UNIT: 1 / c})
        return Value(num, {frozenset(stay): Fraction(1)} if stay else UNIT_POLY)

    # -- powers -----------------------------------------------------------------------------------------------

    def power(self, base: Value, exponent: Value) -> Value:
        """base ** exponent; raises TooLarge where expanding it would be too expensive."""
        q = exponent.rational()
        if q is None:
            return self._symbolic_power(base, exponent)
        if q.denominator == 1:
            return self._whole_power(base, q.numerator)
        return self._root(base, q)

    def _whole_power(self, base: Value, n: int) -> Value:
        if n < 0:
            return self.over(number(1), self._whole_power(base, -n))
        b = base.rational()
        if b is not None:
            if n == 0 or b == 0:
                return number(1) if n == 0 else base
            if abs(b) == 1 or n * _bits(b) <= MAX_BITS:
                return number(self.checked(b ** (n if abs(b) != 1 else n % 2)))
            power = self._prime_power(abs(b), Fraction(n))
            return self.negated(power) if b < 0 and n % 2 else power
        if len(base.num) == 1 and base.den is UNIT_POLY:
            ((mono, c),) = base.num.items()
            return self.times(self._whole_power(number(c), n), Value(self._reduce({a: e * n for a, e in mono})))
        return self._quotient(self._repeat(base.num, n), self._repeat(base.den, n))

    def _prime_power(self, b: Fraction, exponent: Fraction) -> Value:
        """b ** exponent for b > 0, as a product of prime powers."""
        return Value(self._reduce({p: v * exponent for p, v in self.prime_powers(b).items()}))

    def _root(self, base: Value, q: Fraction) -> Value:
        """base ** q for a fraction q. An odd root of a negative number is the real one."""
        if not base.num:
            if q < 0:
                raise Unreadable("division by zero")
            return base
        b = base.rational()
        if b is not None and (b > 0 or q.denominator % 2 or q.denominator == 2):
            root = self._prime_power(abs(b), q)
            if b > 0 or (q.denominator % 2 and q.numerator % 2 == 0):
                return root
            if q.denominator % 2:
                return self.negated(root)
            return self.times(root, Value(self._reduce({"i": q.numerator})))
        if base.den is not UNIT_POLY:
            return self.over(self._root(Value(base.num), q), self._root(Value(base.den), q))
        if len(base.num) == 1:
            ((mono, c),) = base.num.items()
            if c > 0 and all(
                isinstance(a, int) or a in ("π", "e") or (isinstance(a, str) and a != "i" and e == 1) for a, e in mono
            ):
                return self.times(self._prime_power(c, q), Value(self._reduce({a: e * q for a, e in mono})))
        coefficients = list(base.num.values())
        content = Fraction(gcd(*(c.numerator for c in coefficients)), lcm(*(c.denominator for c in coefficients)))
        primitive = frozenset((m, c / content) for m, c in base.num.items())
        under = Value(self._reduce({("root", primitive): q}))
        return self.times(self._prime_power(content, q), under)

    def _symbolic_power(self, base: Value, exponent: Value) -> Value:
        """base ** exponent where the exponent holds a variable: 2^(n+1) = 2 * 2^n, 4^n = (2^n)^2."""
        powers = self._bases(base) if exponent.den is UNIT_POLY else None
        if powers is None:
            return atom(("power", base.key(), exponent.key()))
        out: dict[Atom, Power] = {}
        for a, v in powers:
            for mono, c in exponent.num.items():
                name: Atom = ("pow", a, mono) if mono else a
                out[name] = out.get(name, 0) + v * c
        return Value(self._reduce(out))

    def _bases(self, base: Value) -> Sequence[tuple[Atom, Power]] | None:
        """base as a product of atoms, where it is one: the prime factors of a positive number, or one variable."""
        b = base.rational()
        if b is not None:
            if b <= 0:
                return None
            return tuple(self.prime_powers(b).items())
        if base.den is UNIT_POLY and len(base.num) == 1:
            ((mono, c),) = base.num.items()
            if c == 1 and len(mono) == 1:
                ((a, e),) = mono
                if isinstance(a, str) and a != "i" and e.denominator == 1:
                    return ((a, e),)
        return None
