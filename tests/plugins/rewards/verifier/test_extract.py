"""Extraction: which part of a model answer is the asserted one."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugym_rewards.verifier.extract import EXTRACTIONS, extract_answer, without_thinking


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1,2\}}", r"\{1,2\}"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\fbox{3}", "3"),
        (r"\boxed {3}", "3"),
        (r"\boxed{3} and the format \boxed{}", "3"),
        (r"\boxed{3}, see \boxed{\ldots}", "3"),
        (r"unclosed \boxed{1 but \boxed{2}", "2"),
        (r"\boxed{3} or \boxed{4}", "3, 4"),
        (r"$\boxed{3}$ and $\boxed{-3}$", "3, -3"),
        (r"\boxed{3} so \boxed{4}", "4"),
        (r"\boxed{3} or \boxed{4", None),
        (r"\boxed{}", None),
        (r"it is not \boxed{3}", None),
        (r"\boxed{3} is incorrect", None),
        ("no box: 3", None),
        ("", None),
    ],
)
def test_boxed(text: str, expected: str | None) -> None:
    assert extract_answer(text, "boxed") == expected


@pytest.mark.parametrize(
    ("how", "text", "expected"),
    [
        ("hash", "a = 2\n#### 12 \nbye", "12"),
        ("hash", "#### 1\n#### 2", "2"),
        ("hash", "#### Step 2: multiply\nno more", None),
        ("hash", "# 12", None),
        ("answer_tag", "<answer>1</answer><ANSWER> 2 </ANSWER>", "2"),
        ("answer_tag", "the <answer></answer> tag: <answer>5</answer>", "5"),
        ("answer_tag", "<answer>5</answer> <answer>6", None),
        ("answer_tag", r"<answer>so \boxed{5}</answer>", "5"),
        ("answer_tag", r"<answer>\boxed{5} or \boxed{6}</answer>", r"\boxed{5} or \boxed{6}"),
        ("last_number", "first 3 apples, then 12.", "12"),
        ("last_number", "9 * 2 = $18 a day", "$18"),
        ("last_number", "it is -14 degrees", "-14"),
        ("last_number", "total - 14", "14"),
        ("last_number", "Total: 1,234.5.", "1,234.5"),
        ("last_number", r"so x = \frac{3}{4}", r"\frac{3}{4}"),
        ("last_number", "one of 3, 17, 29", "3, 17, 29"),
        ("last_number", "107 = 100", "107 = 100"),
        ("last_number", "not 5", None),
        ("last_number", "words only", None),
        ("auto", r"#### 5 \boxed{6}", "6"),
        ("auto", "<answer>1</answer>\n#### 5", "5"),
        ("auto", "#### 5\n<answer>1</answer>", "1"),
        ("auto", "The answer is 7", "7"),
        ("auto", "x+1", "x+1"),
        ("auto", r"not \boxed{5}", None),
    ],
)
def test_other_formats(how: str, text: str, expected: str | None) -> None:
    assert extract_answer(text, how) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("<think>a</think>b", "b"),
        ("x<think>a</think>b<THINK>c</THINK>d", "xbd"),
        ("opened by the template</think>b", "b"),
        ("<think>never closed", None),
        ("<think>a</think>b<think>c", None),
        ("<reasoning>a</reasoning>b", "b"),
    ],
)
def test_thinking_is_cut_off(text: str, expected: str | None) -> None:
    assert without_thinking(text) == expected


@pytest.mark.parametrize("text", [r"<think>\boxed{1}</think>so", r"<think>\boxed{1}", r"\boxed{1}</think>so"])
@pytest.mark.parametrize("how", EXTRACTIONS)
def test_an_answer_only_inside_thinking_is_none(text: str, how: str) -> None:
    assert extract_answer(text, how) in (None, "so")
    assert extract_answer(text.replace("so", ""), how) is None


def test_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="boxed, hash, answer_tag, last_number, auto"):
        extract_answer("5", "xml")


pieces = st.sampled_from(
    [
        r"\boxed{",
        "}",
        "{",
        "5",
        " or ",
        "####",
        "\n",
        "<answer>",
        "</answer>",
        "<think>",
        "</think>",
        "=",
        "\\",
        ". ",
        "not",
    ]
)


@given(st.lists(pieces, max_size=30).map("".join), st.sampled_from(EXTRACTIONS))
def test_what_is_extracted_stands_in_the_text(text: str, how: str) -> None:
    found = extract_answer(text, how)
    if found is not None and ", " not in found:
        assert found in (without_thinking(text) or "")
        assert found == found.strip()


@pytest.mark.parametrize("how", EXTRACTIONS)
@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        r"\boxed{1} ",
        r"\boxed{1} or ",
        "{",
        "}",
        "\\",
        "####",
        "#### 1\n",
        "<answer>",
        "<think>",
        "1 ",
        "x. ",
    ],
)
def test_extraction_is_linear(piece: str, how: str) -> None:
    text = piece * (1_000_000 // len(piece))
    start = time.process_time()
    extract_answer(text, how)
    assert time.process_time() - start < 2
