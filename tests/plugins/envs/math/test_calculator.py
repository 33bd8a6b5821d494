"""The calculator: exact where it computes, and a refusal in words where it does not."""

from __future__ import annotations

import ast
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from plugym_envs.math import Calculator
from plugym_envs.math.calculator import MAX_BITS, MAX_LENGTH, calculate


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("-3 - -4", "1"),
        ("+5", "5"),
        ("0.1 + 0.2", "0.3"),
        ("7/2", "3.5"),
        ("1/3*3", "1"),
        ("2/3", "0.666666666667"),
        ("100000000000000.25*2", "200000000000000.5"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("7%4", "3"),
        ("2**10", "1024"),
        ("2^-2", "0.25"),
        ("6 × 7 ÷ 3 − 1", "13"),
        ("1e3", "1000"),
        ("1_000 * 2", "2000"),
        (" 5 ", "5"),
        ("0**0", "1"),
        ("1/1e5", "0.00001"),
    ],
)
def test_result(expression: str, result: str) -> None:
    assert calculate(expression) == result


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "whole number"),
        ("9**9**9", "too large"),
        ("10**308*10**308", "too large"),
        ("1e999999999", "too large"),
        ("1e-999999999", "too large"),
        ("2**(2**100)", "too large"),
        ("1,000+1", "without commas"),
        ("x+1", "only numbers"),
        ("__import__('os')", "only numbers"),
        ("(1).real", "only numbers"),
        ("1(2)", "only numbers"),
        ("1 2", "not an arithmetic expression"),
        ("3 +", "not an arithmetic expression"),
        ("", "not an arithmetic expression"),
        ("(" * 100, "not an arithmetic expression"),
        ("1+" * 100 + "1", f"at most {MAX_LENGTH}"),
    ],
)
def test_refusal(expression: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        calculate(expression)


@given(st.text(st.sampled_from("0123456789.eE_+-*/%()^ ×"), max_size=MAX_LENGTH + 5))
@example("-" * (MAX_LENGTH - 1) + "1")
@example("(" * 95 + "1" + ")" * 95)
@settings(max_examples=300)
def test_hostile_text_is_answered_or_refused_in_one_line(expression: str) -> None:
    try:
        result = calculate(expression)
    except ValueError as error:
        result = str(error)
    assert result
    assert "\n" not in result
    assert len(result) < 2 * MAX_BITS


_NUMBERS = st.integers(0, 999).map(str)
_EXPRESSIONS = st.recursive(
    _NUMBERS,
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]} {0[1]} {0[2]})".format),
    max_leaves=6,
)


@given(_EXPRESSIONS)
@settings(max_examples=150)
def test_agrees_with_fractions(expression: str) -> None:
    try:
        expected = _by_fractions(ast.parse(expression, mode="eval").body)
    except ZeroDivisionError:
        with pytest.raises(ValueError, match="division by zero"):
            calculate(expression)
        return
    shown = Fraction(calculate(expression))
    assert abs(shown - expected) <= abs(expected) * Fraction(1, 10**11)
    if expected.denominator == 1:
        assert shown == expected


def _by_fractions(node: ast.AST) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(str(node.value))
    assert isinstance(node, ast.BinOp)
    a, b = _by_fractions(node.left), _by_fractions(node.right)
    return {ast.Add: a.__add__, ast.Sub: a.__sub__, ast.Mult: a.__mul__, ast.Div: a.__truediv__}[type(node.op)](b)


def test_as_a_tool() -> None:
    tool = Calculator()
    assert tool.spec.name == "calculator"
    assert tool.spec.parameters["required"] == ["expression"]
    assert tool.call(expression="1+1") == "2"


@pytest.mark.parametrize("arguments", [{}, {"expr": "1"}, {"expression": 5}, {"expression": "1", "also": 2}])
def test_bad_arguments_are_refused_before_it_runs(arguments: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Calculator().call(**arguments)
