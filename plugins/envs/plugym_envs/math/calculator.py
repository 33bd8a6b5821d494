"""The `calculator` tool: exact arithmetic on text that a model wrote.

The expression is never evaluated by Python. It may hold nothing but digits, operators and parentheses, is parsed to
a syntax tree, and only the node types listed here are computed, in fractions of bounded size. So the worst that
hostile text can do is to be refused in words.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from pydantic import validate_call

from plugym.message import ToolSpec
from plugym.tools import Tool

MAX_LENGTH = 200
"""Characters of an expression. It also bounds the depth of the syntax tree."""

MAX_BITS = 1024
"""Size of numerator and denominator of every intermediate result: about 300 digits."""

_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**"})
_ALLOWED = re.compile(r"[0-9eE_.+\-*/%() ]*")

_BINARY: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_DIVISIONS = (ast.Div, ast.FloorDiv, ast.Mod)


def calculate(expression: str) -> str:
    """Compute an arithmetic expression and return the number.

    Whole numbers are exact; of other results, 12 digits after the whole part are shown.

    Args:
        expression: numbers with + - * / // % ** and parentheses, such as (3 + 4) * 2.5

    Raises:
        ValueError: it is no such expression, divides by zero or gets too large; the message is for the model.

    >>> calculate("(3 + 4) * 2.5"), calculate("2^10"), calculate("1/3")
    ('17.5', '1024', '0.333333333333')
    """
    source = expression.translate(_SPELLINGS).strip()
    if len(source) > MAX_LENGTH:
        raise ValueError(f"the expression has {len(source)} characters; at most {MAX_LENGTH} are allowed")
    if not _ALLOWED.fullmatch(source):
        raise ValueError("only numbers without commas, + - * / // % ** and parentheses are allowed")
    try:
        tree = ast.parse(source, mode="eval")
    except SyntaxError as error:
        raise ValueError(f"this is not an arithmetic expression ({error.msg})") from error
    return _as_text(_value(tree.body, source))


def _value(node: ast.expr, source: str) -> Fraction:
    match node:
        case ast.Constant(value=int() | float()):
            return _bounded(_literal(node, source))
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, source)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand, source)
        case ast.BinOp(op=ast.Pow()):
            return _bounded(_power(_value(node.left, source), _value(node.right, source)))
        case ast.BinOp() if type(node.op) in _BINARY:
            left, right = _value(node.left, source), _value(node.right, source)
            if right == 0 and isinstance(node.op, _DIVISIONS):
                raise ValueError("division by zero")
            return _bounded(_BINARY[type(node.op)](left, right))
    raise ValueError("only numbers, + - * / // % ** and parentheses are allowed")


def _literal(node: ast.Constant, source: str) -> Fraction:
    """The number as it is written: 0.1 is a tenth, not the float next to it."""
    number = Decimal(ast.get_source_segment(source, node) or "")
    # A huge exponent is cheap as a Decimal and would fill the memory as a Fraction.
    if abs(number.adjusted()) > MAX_BITS:
        raise ValueError("the numbers get too large")
    return Fraction(number)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ValueError("an exponent must be a whole number")
    if base == 0 and exponent < 0:
        raise ValueError("division by zero")
    # Refused before it is computed: the size of the result is known from the operands.
    if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > 2 * MAX_BITS:
        raise ValueError("the numbers get too large")
    return Fraction(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ValueError("the numbers get too large")
    return value


def _as_text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    whole = abs(value.numerator) // value.denominator
    digits = len(str(whole)) if whole else 0
    quotient = Context(prec=digits + 12).divide(Decimal(value.numerator), Decimal(value.denominator))
    return f"{quotient.normalize():f}"


_calculate = validate_call(calculate)


class Calculator(Tool):
    """`calculate` as a tool plugin.

    >>> Calculator().call(expression="6 * 7")
    '42'
    """

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec.from_function(calculate, "calculator")

    def call(self, **arguments: Any) -> str:
        # Bad arguments raise pydantic's ValidationError here: such a call counts as refused, not as executed.
        return _calculate(**arguments)
