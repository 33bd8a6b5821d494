"""Hostile and broken input: never an exception, never more than two seconds, never paid."""

from __future__ import annotations

import random
import time

import pytest

from plugym_rewards.verifier.algebra import AlgebraPool
from plugym_rewards.verifier.equal import decide, grade, grade_response
from plugym_rewards.verifier.extract import EXTRACTIONS

TOO_LARGE = [
    "9^{9^{9^{9}}}", "10^{10^{10}}", "(10^{8})!", "9" * 5000, "1e999999999", r"\binom{10^9}{10^8}",
    "e^{" * 30 + "9" + "}" * 30,
    "+".join(["3000!"] * 150), "*".join(["3000!"] * 150), r"\ln(3000!)+" * 150 + "1", r"\sqrt{3000!}+" * 150 + "1",
    "((x+1)^{20}+1)^{20}", "*".join(["(x+y+z+1)"] * 150), "*".join(rf"(1+\sqrt{{{i}}})" for i in range(2, 60)),
    r"\sin(8x+8y+8z+8w)", r"\sinh((\sinh((x+y)^{9})+z+w)^{9})", r"\prod_{k=1}^{200} k!", r"2^{2^{2^{2^{2^{2}}}}}",
    r"\sum_{k=1}^{200}\sum_{j=1}^{200}\sum_{i=1}^{200} ijk", "(" * 900 + "1" + ")" * 900, "-" * 1999, "^" * 1999,
    r"\sum_{k=1}^{n+50}\sum_{j=1}^{n+50}\sum_{i=1}^{n+50} \cosh(ijk)", "_" * 1999, "|" * 1999, "1," * 900, "(1," * 300,
    r"\frac" * 400, r"\frac{" * 300, r"\text{" * 300, r"1\pm" * 100 + "1", "<" * 999, "1<" * 600, "or " * 600,
    r"\begin{pmatrix}" + "1&" * 600 + r"\end{pmatrix}",
]  # fmt: skip


@pytest.mark.parametrize("text", TOO_LARGE, ids=lambda text: text[:24])
def test_expensive_input_is_refused_quickly(text: str, algebra: AlgebraPool) -> None:
    for gold, pred in (("2", text), (text, "2")):
        start = time.process_time()
        verdict = grade(gold, pred, algebra=algebra)
        assert time.process_time() - start < 2
        assert not verdict.correct
        assert verdict.path != "algebra"


@pytest.mark.parametrize(
    ("gold", "pred", "expected"),
    [
        ("1", "2^{(3^{20})} - 2^{(3^{20})} + 1", True),
        ("9^{9^{9^{9}}}", "9^{9^{9^{9}}}", True),
        ("2^{10^{9}}", "4^{5 \\cdot 10^8}", True),
        ("2^{10^{9}}", "2^{10^{9}+1}", False),
        (r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}", r"\frac{1}{3 \cdot 2^{2006}}", False),
    ],
)
def test_powers_too_big_to_write_out_are_still_compared(gold: str, pred: str, expected: bool) -> None:
    assert grade(gold, pred).correct is expected


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "{" * 3000, "}" * 3000, "\x00", "\ud800", "\x1b[31m5\x1b[0m\x1b", "nan", "NaN", "inf", "None",
        "null", "`",
        r"\boxed{", r"\undefined{5}", "5\\", "5/", "5+", "5^", r"\sqrt", r"\frac{5}", "(5", "5)", "5?", "[5)", "5|",
        "$",
    ],
)  # fmt: skip
def test_malformed_input_is_not_paid(text: str) -> None:
    assert not grade("5", text).correct
    assert not grade(text or "5", "6").correct
    assert not grade_response("5", text + " nothing").correct


TOKENS = [
    "0", "1", "2", "10", "107", "3.5", ".5", "1,234", "999999999999", r"\frac{", "}", "{", r"\frac12", r"\sqrt",
    r"\sqrt{2}",
    "^", "^{", "_", "(", ")", "[", "]", r"\{", r"\}", "|", "+", "-", "*", "/", "=", "<", ">", r"\le", r"\in",
    r"\cup", ",",
    ";", " ", "x", "y", "n", "e", "i", r"\pi", r"\sin", r"\cos ", r"\ln", r"\log_", "!", r"\%", "%", "$", r"\text{ cm}",
    r"\text{", "or", "and", "not", r"\lor", r"\pm", r"\infty", r"\ldots", r"\begin{pmatrix}", r"\end{pmatrix}", "&",
    r"\\",
    r"\sum_{k=1}^{", r"\binom{", "°", "½", "²", "√", "−", "٣", "\ud800", "\x00", "\u200b", r"\boxed{", "####",
    "<think>",
    "</think>", "<answer>", "</answer>", "is", "\n", ":", "_8", "e9", r"\lfloor", r"\rfloor", r"\int", "feet", "m",
    "d x",
    r"\left(", r"\right)", r"\lim",
]  # fmt: skip


def test_ten_thousand_random_texts_neither_raise_nor_stall() -> None:
    source = random.Random(20240607)
    for _ in range(10_000):
        text = "".join(source.choices(TOKENS, k=source.choice((2, 4, 8, 16, 24))))
        gold = "".join(source.choices(TOKENS, k=source.choice((1, 2, 4))))
        start = time.process_time()
        decide(gold, text)
        grade_response(gold, text, source.choice(EXTRACTIONS))
        assert time.process_time() - start < 2, (gold, text)
