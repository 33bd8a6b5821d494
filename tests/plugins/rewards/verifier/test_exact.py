"""Exact arithmetic, the expression reader, normalisation and units, piece by piece."""

from __future__ import annotations

import doctest
import importlib
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym_rewards.verifier.compare import equal_values
from plugym_rewards.verifier.exact import Ring, TooLarge, Unreadable, factor
from plugym_rewards.verifier.expr import NeedsAlgebra, evaluate
from plugym_rewards.verifier.normalize import normalize
from plugym_rewards.verifier.units import read_unit, split_unit

MODULES = "compare equal exact expr extract functions hedge normalize numeric structures tokens units"


@pytest.mark.parametrize("name", MODULES.split())
def test_examples_in_docstrings(name: str) -> None:
    module = importlib.import_module(f"plugym_rewards.verifier.{name}")
    assert doctest.testmod(module).failed == 0


def _python(depth: int) -> st.SearchStrategy[str]:
    leaf = st.one_of(st.integers(0, 99).map(str), st.builds("{}.{}".format, st.integers(0, 9), st.integers(0, 99)))
    if depth == 0:
        return leaf
    inner = _python(depth - 1)
    return st.one_of(
        leaf,
        st.builds("({}+{})".format, inner, inner),
        st.builds("({}-{})".format, inner, inner),
        st.builds("({}*{})".format, inner, inner),
        st.builds("({}/{})".format, inner, inner),
        st.builds("(-{})".format, inner),
        st.builds("{}^{}".format, leaf, st.integers(0, 5)),
    )


@settings(max_examples=200, deadline=None)
@given(_python(3))
def test_arithmetic_agrees_with_fractions(text: str) -> None:
    python = "".join(f"Fraction('{t}')" if t[0].isdigit() else t for t in _pieces(text)).replace("^", "**")
    try:
        expected = eval(python, {"Fraction": Fraction})  # noqa: S307  (our own generated arithmetic)
    except ZeroDivisionError:
        with pytest.raises(Unreadable):
            evaluate(text, Ring())
        return
    assert evaluate(text, Ring()).rational() == expected


def _pieces(text: str) -> list[str]:
    out = [""]
    for c in text:
        if c in "()+-*/^":
            out += [c, ""]
        else:
            out[-1] += c
    return [piece for piece in out if piece]


_symbolic = st.recursive(
    st.sampled_from(["x", "y", "2", "3", r"\sqrt{2}", r"\sqrt{3}", "i", r"\pi", "(-1)", r"\sin x", r"\cos x", "2^n"]),
    lambda inner: st.one_of(
        st.builds("({}+{})".format, inner, inner),
        st.builds("({}-{})".format, inner, inner),
        st.builds("{} {}".format, inner.map("({})".format), inner.map("(x+{})".format)),
        st.builds("({})^2".format, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=30, deadline=None)
@given(_symbolic, _symbolic, _symbolic)
def test_the_laws_of_algebra_hold(a: str, b: str, c: str) -> None:
    for left, right in [
        (f"({a})+({b})", f"({b})+({a})"),
        (f"({a})*({b})", f"({b})*({a})"),
        (f"({a})*(({b})+({c}))", f"({a})*({b})+({a})*({c})"),
        (f"(({a})+({b}))^2", f"({a})^2+2*({a})*({b})+({b})^2"),
        (f"({a})-({a})", "0"),
    ]:
        ring = Ring(100_000)
        assert equal_values(evaluate(left, ring), evaluate(right, ring), ring) is True
        assert equal_values(evaluate(left, ring), evaluate(f"{right}+1", ring), ring) is False


_ATOMS = {r"\sqrt{2}": "sqrt(2)", r"\sqrt[3]{2}": "cbrt(2)", "i": "I", r"\pi": "pi", "2^n": "2**n", "x": "x", "3": "3"}
_twofold = st.recursive(
    st.sampled_from(sorted(_ATOMS.items())),
    lambda inner: st.one_of(
        st.builds(
            lambda a, b, op: (f"({a[0]}{op}{b[0]})", f"({a[1]}{op}{b[1]})"), inner, inner, st.sampled_from("+-*")
        ),
        inner.map(lambda t: (f"({t[0]})^2", f"({t[1]})**2")),
    ),
    max_leaves=6,
)


@settings(max_examples=30, deadline=None)
@given(_twofold, _twofold)
def test_verdicts_agree_with_sympy(a: tuple[str, str], b: tuple[str, str]) -> None:
    """Each expression is generated twice, as LaTeX and as Python."""
    sympy = pytest.importorskip("sympy", reason="needs the extra `math`")
    ring = Ring(100_000)
    ours = equal_values(evaluate(a[0], ring), evaluate(b[0], ring), ring)
    assert ours is (sympy.expand(sympy.sympify(f"{a[1]}-({b[1]})")) == 0)
    square, expanded = f"({a[0]}+{b[0]})^2", sympy.latex(sympy.expand(sympy.sympify(f"({a[1]}+{b[1]})**2")))
    assert equal_values(evaluate(square, ring), evaluate(normalize(expanded), ring), ring) is True


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("2 3", Unreadable), ("2 3/2", Unreadable), ("100(107)", Unreadable), ("0x", Unreadable), ("x 2", Unreadable),
        ("1/0", Unreadable), ("0^{-1}", Unreadable), ("(-1)!", Unreadable), (r"\ln 0", Unreadable),
        ("hello", Unreadable), (r"\foo", Unreadable), ("", Unreadable), ("(1", Unreadable), ("5!!", Unreadable),
        (r"\infty+1", Unreadable),
        (r"\int x dx", NeedsAlgebra), (r"\lim_{x} x", NeedsAlgebra), (r"\sum_{k=1}^{∞} k", NeedsAlgebra),
        ("9999!", TooLarge), ("(x+y+z)^{200}", TooLarge), ("(" * 60 + "1" + ")" * 60, TooLarge),
    ],
)  # fmt: skip
def test_what_is_not_an_expression(text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        evaluate(text, Ring())


@given(st.integers(1, 10**12))
def test_factors_multiply_to_the_number(n: int) -> None:
    product = 1
    for p, k in factor(n).items():
        product *= p**k
    assert product == n


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\left(\dfrac12,\; 3\right)$", r"(\frac{1}{2};3)"),
        (r"\frac1{2}", r"\frac{1}{2}"),
        (r"\frac{1}2", r"\frac{1}{2}"),
        ("2½", "2 1/2"),
        ("x²³", "x^{23}"),
        ("a₁", "a_{1}"),
        ("x <= 3", "x≤3"),
        (r"90^{\circ}", "90°"),
        (r"1{,}000{,}000", "1000000"),
        (r"\text{The answer is } 5.", "5"),
        (r"\mathrm{e}^2", "e^2"),
        ("{{5}}", "5"),
        ("5\u200b0", "50"),
        (r"\$5", "$5"),
    ],
)
def test_normal_spelling(text: str, expected: str) -> None:
    assert normalize(text) == expected


@given(st.text(max_size=60))
def test_normalisation_never_raises_and_is_stable_on_plain_text(text: str) -> None:
    once = normalize(text)
    if once.isalnum() and once.isascii():
        assert normalize(once) == once


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("m", "meters"), ("cm^2", "square centimeters"), ("m/s", "meters per second"), ("mph", "miles per hour"),
        ("$", "dollars"), ("kg", "kilograms"), ("%", "percent"), ("°", "degrees"), ("eggs", "egg"), ("boxes", "box"),
        ("red apples", "apples"), ("cubic feet", "ft^3"),
    ],
)  # fmt: skip
def test_units_with_the_same_meaning(one: str, other: str) -> None:
    assert read_unit(one) is not None
    assert read_unit(one) == read_unit(other)


@pytest.mark.parametrize(
    "text", ["is wrong", "or", "maybe", "one", "not", "x", "sin", "the answer is correct", "a b c d e"]
)
def test_words_that_are_no_unit(text: str) -> None:
    assert read_unit(text) is None


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("5cm", "5", "cm"), ("-$5", "-5", "$"), ("$5 per hour", "5", "$/h"), ("5€", "5", "€"), ("18 eggs", "18", "egg"),
        (r"\frac{1}{2}cm", r"\frac{1}{2}", "cm"), ("3x", "3x", None), ("2 n", "2 n", None), ("x+1", "x+1", None),
        (r"\sin 30°", r"\sin 30°", None), ("x eggs", "x eggs", None),
    ],
)  # fmt: skip
def test_units_are_split_off(text: str, amount: str, unit: str | None) -> None:
    assert split_unit(text) == (amount, read_unit(unit) if unit else None)
