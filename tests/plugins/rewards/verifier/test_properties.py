"""Properties of grading: notations agree, neighbours differ, order does not matter, hedges are never paid."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym_rewards.verifier.equal import grade, grade_response

rationals = st.one_of(
    st.integers(-(10**7), 10**7).map(Fraction),
    st.builds(Fraction, st.integers(-(10**5), 10**5), st.integers(1, 2000)),
    st.builds(lambda n, k: Fraction(n, 10**k), st.integers(-(10**6), 10**6), st.integers(0, 4)),
)


def _decimal(q: Fraction) -> str | None:
    for digits in range(9):
        scaled = q * 10**digits
        if scaled.denominator == 1:
            text = f"{abs(scaled.numerator):0{digits + 1}d}"
            body = f"{text[:-digits]}.{text[-digits:]}" if digits else text
            return "-" + body if q < 0 else body
    return None


def _mixed(q: Fraction) -> tuple[str, int, int] | None:
    whole, rest = divmod(abs(q.numerator), q.denominator)
    return ("-" if q < 0 else "", whole, rest) if whole and rest else None


def notations(q: Fraction) -> list[str]:
    """Spellings of one rational number."""
    n, d, sign = q.numerator, q.denominator, "-" if q < 0 else ""
    spelled = [
        f"{n}/{d}",
        rf"\frac{{{n}}}{{{d}}}",
        rf"{sign}\dfrac{{{abs(n)}}}{{{d}}}",
        rf"\frac{{{3 * n}}}{{{3 * d}}}",
        rf"$\frac{{{n}}}{{{d}}}$",
        rf"\boxed{{{n}/{d}}}",
        rf"\text{{{n}/{d}}}",
        rf"x={n}/{d}",
        f"({n}/{d})",
        f"{n}/{d}".replace("-", "−"),
        f"{n}/{d}".translate(str.maketrans("0123456789", "０１２３４５６７８９")),
        rf"\left({n}\right) \div {d}",
        rf"{n}/{d} + 1 - 1",
        f"**{n}/{d}**",
    ]
    mixed = _mixed(q)
    if mixed:
        sign, whole, rest = mixed
        spelled += [f"{sign}{whole} {rest}/{d}", rf"{sign}{whole}\frac{{{rest}}}{{{d}}}"]
    decimal, percent = _decimal(q), _decimal(100 * q)
    if decimal:
        spelled += [decimal, decimal + ("" if "." in decimal else ".0"), rf"{decimal} \cdot 10^{{0}}", f"{decimal}e0"]
    if percent:
        spelled += [percent + r"\%", percent + "%", percent + " percent"]
    if d == 1:
        grouped = f"{n:,}"
        spelled += [str(n), grouped, grouped.replace(",", "{,}"), grouped.replace(",", r"\,"), f"{sign}00{abs(n)}"]
        spelled += [f"{n} apples", rf"{n}\text{{ cm}}", f"{n}.", rf"\${n}" if n >= 0 else rf"-\${-n}"]
    return spelled


@settings(max_examples=80, deadline=None)
@given(rationals, st.data())
def test_a_value_equals_itself_in_each_notation(q: Fraction, data: st.DataObject) -> None:
    spelled = notations(q)
    bare = [s for s in spelled if not s.endswith((" apples", "cm}", "%", "percent")) and "$" not in s]
    gold = data.draw(st.sampled_from(bare))
    for pred in spelled:
        assert grade(gold, pred).correct, (gold, pred, grade(gold, pred))


@settings(max_examples=80, deadline=None)
@given(rationals, st.data())
def test_x_is_not_x_plus_one(q: Fraction, data: st.DataObject) -> None:
    gold = data.draw(st.sampled_from(notations(q)))
    for pred in notations(q + 1):
        assert not grade(gold, pred).correct, (gold, pred)


VALUES = [
    "0", "1", "-1", "1/2", "0.5", r"\sqrt{2}", r"\frac{2}{\sqrt 2}", r"\pi", "e", "x", "x+1", "1+x", "2x", r"x\cdot 2",
    "(x+1)^2", "x^2+2x+1", r"\sin x", r"\cos x", r"\sin^2 x", r"1-\cos^2 x", "2^n", r"4^{n/2}", "i", r"\sqrt{-1}",
    "(1,2)", "[1,2]", "(2,1)", "1,2", r"\{2,1\}", "x=1", "x<1", r"(-\infty,1)", r"\pm 1", "1,-1", "A", "B", "yes",
    r"5\text{ cm}", r"5\text{ m}", r"500\text{ cm}", "1:30", "11_2", r"\begin{pmatrix}1&2\end{pmatrix}", r"\infty",
    "y=2x", "2x-y=0", "y<2x", r"\ln 4", r"2\ln 2", "n!", r"\frac{1}{x+1}", r"\frac{2}{2x+2}",
]  # fmt: skip


@pytest.mark.parametrize("a", VALUES)
def test_equality_is_symmetric_and_repeatable(a: str) -> None:
    """Never both x == y and x != y."""
    assert grade(a, a).correct
    for b in VALUES:
        first = grade(a, b)
        assert grade(b, a).correct is first.correct, (a, b)
        assert grade(a, b) == first


@pytest.mark.parametrize("a", VALUES)
def test_equality_is_transitive(a: str) -> None:
    equal = [b for b in VALUES if grade(a, b).correct and not {a, b} & LENIENT]
    for b in equal:
        for c in equal:
            assert grade(b, c).correct, (b, a, c)


# A name may be left out, and a bare list stands for a set as well as for a tuple: equal to two unequal ones.
LENIENT = {"y=2x", "2x", r"x\cdot 2", "x=1", "x<1", "1,2"}

HEDGES: list[Callable[[str, str], str]] = [
    lambda a, b: f"{a} = {b}",
    lambda a, b: f"{a}={b}={a}",
    lambda a, b: rf"{a} \neq {b}",
    lambda a, b: f"{a} != {b}",
    lambda a, b: rf"{a} \lor {b}",
    lambda a, b: rf"{a} \vee {b}",
    lambda a, b: rf"{a} \land {b}",
    lambda a, b: f"{a}, {b}",
    lambda a, b: f"{a}; {b}",
    lambda a, b: f"{a} or {b}",
    lambda a, b: f"{a}, or {b}",
    lambda a, b: rf"{a} \text{{ or }} {b}",
    lambda a, b: rf"{a} \text{{ and }} {b}",
    lambda a, b: f"{a} (or {b})",
    lambda a, b: f"{a} ({b})",
    lambda a, b: f"{a} {b}",
    lambda a, b: f"{a}\n{b}",
    lambda a, b: rf"{a} \quad {b}",
    lambda a, b: rf"{a}\,{b}",
    lambda a, b: rf"{a} \\ {b}",
    lambda a, b: f"~~{a}~~ {b}",
    lambda a, b: rf"\cancel{{{a}}} {b}",
    lambda a, b: rf"\{{{a}, {b}\}}",
    lambda a, b: f"({a}, {b})",
    lambda a, b: f"[{a}, {b}]",
    lambda a, b: rf"{a} \to {b}",
    lambda a, b: rf"{a} \Rightarrow {b}",
    lambda a, b: f"{a} -> {b}",
    lambda a, b: rf"{a} \approx {b}",
    lambda a, b: f"{a} < {b}",
    lambda a, b: rf"{a} \geq {b}",
    lambda a, b: rf"{a} \cup {b}",
    lambda a, b: rf"{a} \mid {b}",
    lambda a, b: rf"\max({a}, {b})",
    lambda a, b: rf"\begin{{cases}} {a} \\ {b} \end{{cases}}",
    lambda a, b: rf"\begin{{pmatrix}} {a} & {b} \end{{pmatrix}}",
    lambda a, b: f"x={a} or x={b}",
    lambda a, b: f"x={a}, y={b}",
    lambda a, b: f"{a}, not {b}",
    lambda a, b: f"not {a} but {b}",
    lambda a, b: rf"{a} \text{{ rather than }} {b}",
    lambda a, b: rf"{a} \text{{ if not }} {b}",
    lambda a, b: rf"\text{{either }} {a} \text{{ or }} {b}",
    lambda a, b: rf"\boxed{{{a}}} \text{{ or }} \boxed{{{b}}}",
    lambda a, b: f"{a}: {b}",
    lambda a, b: f"{a} & {b}",
]
integers = st.integers(2, 10**4)
pairs = st.one_of(
    st.tuples(integers, integers),
    st.tuples(integers, st.integers(-9, 9)),
).filter(lambda p: p[0] != p[1] and p[1] not in (0, -p[0]))


@settings(max_examples=30, deadline=None)
@given(pairs)
def test_no_hedge_is_paid_in_either_order(pair: tuple[int, int]) -> None:
    right, wrong = map(str, pair)
    for hedge in HEDGES:
        for text in (hedge(right, wrong), hedge(wrong, right)):
            assert not grade(right, text).correct, text
            assert not grade_response(right, rf"So \boxed{{{text}}}.").correct, text
            assert not grade_response(right, f"<answer>{text}</answer>").correct, text


@pytest.mark.parametrize(
    "denial",
    [
        "not {}", "{} is wrong", "{} (this is wrong)", r"\text{{not }} {}", r"\neq {}", r"\neg {}", r"\approx {}",
        "maybe {}", "about {}", "{}?", "{} is incorrect", "never {}", "isn't {}", "{} I guess", "{} (maybe)",
        r"{} \text{{ is false}}", "= {}", "< {}", "{} nan", "{} one", r"\sim {}",
    ],
)  # fmt: skip
@given(st.integers(-999, 9999))
@settings(max_examples=10, deadline=None)
def test_a_denied_or_doubted_answer_is_not_paid(denial: str, n: int) -> None:
    assert not grade(str(n), denial.format(n)).correct


@pytest.mark.parametrize(
    "sentence",
    [
        "The answer is {a} or {b}.", "It is either {a} or {b}.", "{a}, {b}", "{a} {b}", "{a} = {b}", "Maybe {b}.",
        "It is not {b}.", "{a}? {b}?\nNo answer, maybe {b}.", "The answer isn't {b}.", "{b} is wrong.",
        "The candidates are {a}, {b}", "{a} < {b}", "{a} or maybe {b}", "{b}. No, that is wrong.",
    ],
)  # fmt: skip
@given(pairs)
@settings(max_examples=10, deadline=None)
def test_no_hedge_in_prose_is_paid(sentence: str, pair: tuple[int, int]) -> None:
    right, wrong = map(str, pair)
    text = sentence.format(a=wrong, b=right)
    assert not grade_response(right, text).correct, text
