"""A recursive-descent reader of one mathematical expression, straight to an exact value.

What belongs here: `evaluate`, its tokens and its grammar. The text has been through `normalize`; relations, lists,
intervals and units were taken off before (`structures.py`, `units.py`). The reader is strict: two numbers side by
side, an improper mixed number (4 10/3) or a word it does not know make the text unreadable, never half read.

    expression := [sign] term (sign term)*            term   := factor ([* /] factor | factor)*
    factor     := sign factor | base postfix*         postfix := ! | % | ° | ^ exponent
"""

from __future__ import annotations

from fractions import Fraction

from .exact import Ring, TooLarge, Unreadable, Value, atom, number
from .functions import FUNCTIONS, apply, binomial, exponential
from .tokens import BRACKETS, LETTERS, ONLY_ALGEBRA, Token, parse_number, repeating_decimal, tokenize

MAX_DEPTH = 40
MAX_SERIES = 200  # terms of a sum or product that is evaluated exactly
CALLABLE = frozenset("fghFGH")


class NeedsAlgebra(Unreadable):
    """Well-known notation that only a computer algebra system evaluates (integrals, limits)."""


def evaluate(text: str, ring: Ring) -> Value:
    """The exact value of a normalised expression.

    Raises Unreadable, NeedsAlgebra or TooLarge.

    >>> evaluate("2 1/2", Ring()).rational()
    Fraction(5, 2)
    """
    if text in ("∞", "+∞", "-∞"):
        return ring.negated(atom("∞")) if text[0] == "-" else atom("∞")
    return _Reader(tokenize(text), ring).whole()


class _Reader:
    """One pass over the tokens."""

    def __init__(self, tokens: list[Token], ring: Ring) -> None:
        self._tokens = tokens
        self._ring = ring
        self._at = 0
        self._depth = 0
        self._bars = 0  # how many |...| are open
        self._bound: dict[str, Value] = {}  # index variables of sums being evaluated

    def whole(self) -> Value:
        value = self._expression()
        if self._at < len(self._tokens):
            raise Unreadable(f"unexpected {self._peek()!r}")
        return value

    # -- tokens -----------------------------------------------------------------------------------------------

    def _peek(self, ahead: int = 0) -> str:
        i = self._at + ahead
        return self._tokens[i].text if i < len(self._tokens) else ""

    def _kind(self, ahead: int = 0) -> str:
        i = self._at + ahead
        return self._tokens[i].kind if i < len(self._tokens) else "end"

    def _accept(self, text: str) -> bool:
        if self._peek() == text:
            self._at += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise Unreadable(f"{text!r} is missing")

    # -- grammar ----------------------------------------------------------------------------------------------

    def _expression(self) -> Value:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge(f"brackets nested deeper than {MAX_DEPTH}")
        value = self._term()
        while self._peek() in ("+", "-"):
            value = self._ring.minus(value, self._term()) if self._sign() < 0 else self._ring.plus(value, self._term())
        self._depth -= 1
        return value

    def _sign(self) -> int:
        sign = -1 if self._peek() == "-" else 1
        self._at += 1
        return sign

    def _term(self) -> Value:
        start = self._at
        value = self._factor()
        while True:
            literal = self._is_literal(start)
            start = self._at
            if self._accept("*"):
                value = self._ring.times(value, self._factor())
            elif self._accept("/"):
                value = self._ring.over(value, self._factor())
            elif self._starts_factor():
                factor = self._factor()
                if literal and (self._is_literal(start) or not value.num):
                    raise Unreadable("two numbers side by side, or a factor 0")
                value = self._ring.times(value, factor)
            else:
                return value

    def _is_literal(self, start: int) -> bool:
        """Whether the factor read since `start` is a bare number, in brackets or not."""
        inner = [t.kind for t in self._tokens[start : self._at] if t.text not in "()[]{}"]
        return inner == ["number"]

    def _starts_factor(self) -> bool:
        kind, text = self._kind(), self._peek()
        if kind == "number" or kind == "repeating":
            raise Unreadable("a number directly after another factor")
        return kind in ("name", "command") or (
            kind == "char" and (text in "([{⌊⌈" or text in LETTERS or (text == "|" and not self._bars))
        )

    def _factor(self) -> Value:
        if self._peek() in ("+", "-"):
            self._depth += 1
            if self._depth > MAX_DEPTH:
                raise TooLarge("too many signs in a row")
            value = self._ring.negated(self._factor()) if self._sign() < 0 else self._factor()
            self._depth -= 1
            return value
        if self._is_euler():
            self._at += 2
            return self._postfix(exponential(self._ring, self._exponent()))
        return self._postfix(self._base())

    def _is_euler(self) -> bool:
        return self._peek() == "e" and self._peek(1) == "^" and "e" not in self._bound

    def _postfix(self, value: Value) -> Value:
        while True:
            if self._accept("!"):
                if self._peek() == "!":
                    raise Unreadable("a double factorial")
                value = apply(self._ring, "factorial", value)
            elif self._accept("%"):
                value = self._ring.over(value, number(100))
            elif self._accept("°"):
                value = self._ring.times(value, self._ring.over(atom("π"), number(180)))
            elif self._accept("^"):
                value = self._ring.power(value, self._exponent())
            else:
                return value

    def _exponent(self) -> Value:
        """What stands after ^: a group, or one signed item with its own exponent (towers nest to the right)."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise TooLarge("a tower of powers")
        if self._peek() in ("+", "-"):
            sign = self._sign()
            value = self._exponent()
            value = self._ring.negated(value) if sign < 0 else value
        else:
            value = self._base()
            if self._accept("^"):
                value = self._ring.power(value, self._exponent())
        self._depth -= 1
        return value

    def _base(self) -> Value:
        kind, text = self._kind(), self._peek()
        self._at += 1
        if kind == "number":
            return self._mixed(text)
        if kind == "repeating":
            return number(repeating_decimal(text))
        if kind == "command":
            return self._command(text)
        if kind == "name" or text in LETTERS:
            return self._symbol(text)
        if text == "|":
            self._bars += 1
            value = self._expression()
            self._bars -= 1
            self._expect("|")
            return apply(self._ring, "abs", value)
        if text in BRACKETS:
            bars, self._bars = self._bars, 0
            value = self._expression()
            self._bars = bars
            self._expect(BRACKETS[text])
            rounding = {"⌊": "floor", "⌈": "ceil"}.get(text)
            return apply(self._ring, rounding, value) if rounding else value
        raise Unreadable(f"unexpected {text!r}" if text else "the expression ends too early")

    def _mixed(self, text: str) -> Value:
        """A number, or a mixed number (2 2/3, 2\\frac{2}{3}); an improper one is refused."""
        value = parse_number(text, self._ring)
        if not text.isdigit():
            return value
        ahead = [self._peek(i) for i in range(7)]
        if self._kind() == "number" and ahead[1] == "/" and self._kind(2) == "number":
            above, below, length = ahead[0], ahead[2], 3
        elif ahead[0] == "\\frac" and ahead[1] == ahead[4] == "{" and ahead[3] == ahead[6] == "}":
            above, below, length = ahead[2], ahead[5], 7
        else:
            return value
        if not (above.isdigit() and below.isdigit()):
            return value
        if int(above) >= int(below) or not int(text):
            raise Unreadable("an improper mixed number")
        self._at += length
        return self._ring.plus(value, number(Fraction(int(above), int(below))))

    def _symbol(self, text: str) -> Value:
        if text in self._bound:
            return self._bound[text]
        if self._accept("_"):
            index = self._subscript()
            plain = index.rational()
            if plain is not None and plain.denominator == 1:
                return atom(f"{text}_{plain.numerator}")
            return atom(("fn", "index " + text, index.key()))
        if text in CALLABLE and self._peek() == "(":
            return atom(("fn", "call " + text, self._base().key()))
        return atom(text)

    def _subscript(self) -> Value:
        if self._peek() == "{":
            return self._base()
        kind, text = self._kind(), self._peek()
        self._at += 1
        if kind == "number" and text.isdigit():
            return number(int(text))
        if kind == "name":
            return self._bound.get(text) or atom(text)
        raise Unreadable("a subscript that is not an index")

    # -- commands ---------------------------------------------------------------------------------------------

    def _group(self) -> Value:
        if self._peek() not in ("{", "("):
            raise Unreadable("an argument is missing")
        return self._base()

    def _command(self, text: str) -> Value:
        name = text[1:]
        if name == "pi":
            return atom("π")
        if name == "frac":
            above = self._group()
            return self._ring.over(above, self._group())
        if name == "sqrt":
            return self._radical()
        if name == "binom":
            above = self._group()
            return binomial(self._ring, above, self._group())
        if name in FUNCTIONS:
            return self._function(name)
        if name in ("sum", "prod"):
            return self._series(name)
        if text in ONLY_ALGEBRA:
            raise NeedsAlgebra(f"{text} needs algebra")
        raise Unreadable(f"the command {text[:40]!r}")

    def _radical(self) -> Value:
        index = number(2)
        if self._accept("["):
            index = self._expression()
            self._expect("]")
        radicand = self._base()
        return self._ring.power(radicand, self._ring.over(number(1), index))

    def _function(self, name: str) -> Value:
        base, power = None, None
        if name == "log" and self._accept("_"):
            base = self._subscript_value()
        if self._accept("^"):
            power = self._exponent()
        if power is not None and power.rational() == -1:
            name, power = f"arc{name}", None
            if name not in FUNCTIONS:
                raise Unreadable("an inverse function without a name")
        argument = self._argument()
        if base is None:
            value = apply(self._ring, name, argument)
        else:
            value = self._ring.over(apply(self._ring, "ln", argument), apply(self._ring, "ln", base))
        return value if power is None else self._ring.power(value, power)

    def _subscript_value(self) -> Value:
        if self._peek() == "{":
            return self._base()
        kind, text = self._kind(), self._peek()
        if kind == "number" and text.isdigit() and len(text) > 1 and not self._starts_after(1):
            # \log_28 is the logarithm of 8 to base 2: a brace-less subscript is one digit
            self._tokens[self._at] = Token("number", text[1:])
            return number(int(text[0]))
        return self._subscript()

    def _starts_after(self, ahead: int) -> bool:
        return self._kind(ahead) in ("number", "name", "command") or self._peek(ahead) in ("(", "{")

    def _argument(self) -> Value:
        """A bracketed argument, or the factors that follow without a sign: sin 2x."""
        if self._peek() in ("(", "{", "["):
            return self._base()
        value = None
        while value is None or (self._starts_factor() and not self._at_function()):
            factor = self._base()
            while self._peek() in ("^", "!", "°"):
                factor = self._postfix(factor)
            value = factor if value is None else self._ring.times(value, factor)
        return value

    def _at_function(self) -> bool:
        return self._peek()[1:] in FUNCTIONS and self._kind() == "command"

    def _series(self, name: str) -> Value:
        """\\sum_{k=a}^{b} body: added up when a and b are numbers, else an atom."""
        self._expect("_")
        self._expect("{")
        variable = self._peek()
        if self._kind() != "name" or self._peek(1) != "=":
            raise NeedsAlgebra(f"\\{name} over something else than an index")
        self._at += 2
        low = self._expression()
        self._expect("}")
        self._expect("^")
        if self._peek() in ("∞", "{") and "∞" in (self._peek(), self._peek(1)):
            raise NeedsAlgebra(f"an infinite \\{name}")
        high, start = self._exponent(), self._at
        first, last = low.rational(), high.rational()
        if first is None or last is None or first.denominator != 1 or last.denominator != 1:
            body = self._term()
            return atom(("series", name, variable, low.key(), high.key(), body.key()))
        if last - first >= MAX_SERIES or last < first:
            raise NeedsAlgebra(f"a \\{name} of too many terms, or of none")
        return self._add_up(name, variable, range(int(first), int(last) + 1), start)

    def _add_up(self, name: str, variable: str, over: range, start: int) -> Value:
        outer, ring = self._bound, self._ring
        total = number(0 if name == "sum" else 1)
        for k in over:
            self._at, self._bound = start, {**outer, variable: number(k)}
            ring.spend(len(self._tokens))
            term = self._term()
            total = ring.plus(total, term) if name == "sum" else ring.times(total, term)
        self._bound = outer
        return total
