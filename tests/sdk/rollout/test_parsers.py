"""Parsers of model text: round trips, and that nothing a model can write makes them raise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.message import Action, ToolSpec
from plugym.rollout.parsers import HermesParser, Parser, PlainParser, split_reasoning

TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
# A tag inside a string would end the call early: such a call is reported, not guessed at.
arguments = st.dictionaries(st.text(), json_values, max_size=3).filter(lambda a: not any(t in str(a) for t in TAGS))


@settings(max_examples=50)
@given(st.lists(st.tuples(st.text().filter(lambda n: "<" not in n), arguments), max_size=4), st.integers(0, 9))
def test_hermes_reads_what_it_writes(calls: list[tuple[str, dict[str, Any]]], turn: int) -> None:
    text = "Let me see." + " ".join(HermesParser().render_call(name, args) for name, args in calls)
    action = HermesParser().parse(text, turn)
    assert [(call.name, dict(call.arguments), call.error) for call in action.tool_calls] == [
        (name, args, None) for name, args in calls
    ]
    assert action.text == "Let me see."
    assert action.raw == text


pieces = st.sampled_from([*TAGS, '{"name": "f", "arguments": {}}', '{"name": 3}', '"', "{", "[", "\\ud800", "\n", "a"])


@given(st.lists(pieces | st.text(max_size=3), max_size=12).map("".join), st.integers(0, 99))
def test_no_text_makes_a_parser_raise(text: str, turn: int) -> None:
    check(HermesParser(), text, turn)
    check(PlainParser(), text, turn)


def check(parser: Parser, text: str, turn: int) -> Action:
    action = parser.parse(text, turn)
    assert action.raw == text
    ids = [call.id for call in action.tool_calls]
    assert len(set(ids)) == len(ids)
    for call in action.tool_calls:
        assert call.error is None or call.error
        json.dumps(dict(call.arguments), allow_nan=False, ensure_ascii=False).encode()
        call.name.encode()
    return action


def hostile(n: int) -> Iterator[str]:
    """Calls with random damage: cut, doubled, spliced, nested, with bytes that do not belong there."""
    rng = random.Random(0)
    whole = '<think>so</think>hi<tool_call>{"name": "add", "arguments": {"a": [1, "\\u00e9"], "b": {}}}</tool_call>bye'
    chars = '{}[]",:\\<>/\n\x00\u2028\U0001f600 tool_cahink1e9-.'
    for _ in range(n):
        text = whole * rng.randint(1, 2)
        for _ in range(rng.randint(0, 4)):
            at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            match rng.randrange(4):
                case 0:
                    text = text[:at] + text[to:]
                case 1:
                    text = text[:at] + "".join(rng.choice(chars) for _ in range(rng.randint(1, 8))) + text[at:]
                case 2:
                    text = text[:to] + text[at:]
                case _:
                    text = text[:at] + rng.choice(TAGS) + text[at:]
        yield text


def test_ten_thousand_damaged_calls() -> None:
    errors = 0
    for turn, text in enumerate(hostile(10_000)):
        errors += any(call.error for call in check(HermesParser(), text, turn).tool_calls)
    assert errors > 1000, "the damage is real"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{oops", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ('{"name": "f", "arguments": {"a": NaN}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"a": 1e999}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"a": "\\udc00"}}', "not valid JSON"),
        ('{"name": "f", "arguments": {"a": ' + "9" * 5000 + "}}", "not valid JSON"),
        ('["f"]', 'expected an object with "name"'),
        ('{"arguments": {}}', 'expected an object with "name"'),
        ('{"name": "f", "arguments": [1]}', "must be an object"),
        ('{"name": "f", "arguments": "{oops"}', "arguments are not valid JSON"),
        ('{"name": "f", "arguments": null}', "must be an object"),
    ],
)
def test_what_cannot_be_read_is_kept_with_its_reason(body: str, problem: str) -> None:
    action = HermesParser().parse(f"<tool_call>{body}</tool_call>", 4)
    (call,) = action.tool_calls
    assert problem in (call.error or "")
    assert (call.id, call.raw, dict(call.arguments)) == ("call_4_0", body, {})
    assert action.message().text == action.raw, "the model sees what it wrote"
    assert action.message().tool_calls == ()


def test_arguments_as_a_json_string_are_read() -> None:
    (call,) = HermesParser().parse('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>').tool_calls
    assert (dict(call.arguments), call.error) == ({"a": 1}, None)


def test_a_call_that_was_not_closed_still_counts() -> None:
    (call,) = HermesParser().parse('<tool_call>{"name": "f", "arguments": {}}').tool_calls
    assert call.error is None


@pytest.mark.parametrize(
    ("raw", "reasoning", "visible"),
    [
        ("42", "", "42"),
        ("<think>a</think>b", "a", "b"),
        ("a</think>b", "a", "b"),
        ("<think>a", "a", ""),
        ("<think>a</think>b<think>c</think>d", "ab<think>c", "d"),
        ("see <think>", "", "see <think>"),
        ("<think></think>", "", ""),
        ('<think><tool_call>{"name": "f"}</tool_call></think>x', '<tool_call>{"name": "f"}</tool_call>', "x"),
    ],
)
def test_reasoning_is_split_off(raw: str, reasoning: str, visible: str) -> None:
    assert split_reasoning(raw) == (reasoning, visible)


def test_a_call_inside_the_reasoning_is_a_thought_not_a_call() -> None:
    assert HermesParser().parse('<think><tool_call>{"name": "f"}</tool_call></think>x').tool_calls == ()


@given(st.text(), st.text())
def test_reasoning_round_trip(thought: str, answer: str) -> None:
    raw = f"<think>{thought}</think>{answer}"
    reasoning, visible = split_reasoning(raw)
    if "think>" not in thought + answer:
        assert (reasoning, visible) == (thought.strip(), answer.lstrip())


def test_instructions_name_every_tool_and_the_format() -> None:
    spec = ToolSpec("add", "Add.", {"type": "object", "properties": {}, "required": []})
    text = HermesParser().instructions([spec])
    assert spec.to_json() in text
    assert "<tool_call>" in text
    assert PlainParser().instructions([spec]) == ""
    with pytest.raises(NotImplementedError, match=r"--rollout\.parser hermes"):
        PlainParser().render_call("add", {})
