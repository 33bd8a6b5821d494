"""The tool-call formats beyond Hermes: each reads what it writes, whatever the arguments hold, and nothing a model can
write makes one raise."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugym.message import Action, ToolSpec
from plugym.registry import registry
from plugym.rollout.formats.llama3_json import Llama3JSONParser
from plugym.rollout.formats.qwen3_xml import Qwen3XMLParser
from plugym.rollout.formats.tags import TagsParser
from plugym.rollout.parsers import HermesParser, Parser

PARSERS: dict[str, Parser] = {
    "hermes": HermesParser(),
    "qwen3_xml": Qwen3XMLParser(),
    "llama3_json": Llama3JSONParser(),
    "tags": TagsParser(),
}
MARKUP = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", "<|eom_id|>", '<tool name="f">', "<tool"),
    *("</tool>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", '{"name": "f", "parameters": {}}'),
    *('{"name": "f", "arguments": {}}', '{"name":', "{}", "1", "null", '"', "{", "[", "\\ud800", "\n", ";", "NaN"),
]
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(MARKUP),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
names = st.text(st.characters(codec="utf-8", exclude_characters="<>\n"), min_size=1).filter(lambda s: s == s.strip())
some_calls = st.lists(st.tuples(names, st.dictionaries(names, json_values, max_size=3)), max_size=4)


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@settings(max_examples=60, deadline=None)
@given(calls=some_calls, turn=st.integers(0, 9))
def test_reads_what_it_writes(parser: Parser, calls: list[tuple[str, dict[str, Any]]], turn: int) -> None:
    text = "Let me see." + " ".join(parser.render_call(name, arguments) for name, arguments in calls)
    action = parser.parse(text, turn)
    assert [(call.name, dict(call.arguments), call.error) for call in action.tool_calls] == [
        (name, arguments, None) for name, arguments in calls
    ]
    assert [call.id for call in action.tool_calls] == [f"call_{turn}_{i}" for i in range(len(calls))]
    assert (action.text, action.reasoning, action.raw) == ("Let me see.", "", text)


def check(parser: Parser, text: str, turn: int) -> Action:
    action = parser.parse(text, turn)
    assert action.raw == text
    assert len({call.id for call in action.tool_calls}) == len(action.tool_calls)
    for call in action.tool_calls:
        assert call.error != ""
        json.dumps(dict(call.arguments), allow_nan=False, ensure_ascii=False).encode()
        call.name.encode()
    return action


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
@given(text=st.lists(st.sampled_from(MARKUP) | st.text(max_size=3), max_size=12).map("".join))
def test_no_text_makes_a_parser_raise(parser: Parser, text: str) -> None:
    check(parser, text, 0)


def damaged(whole: str, n: int) -> Iterator[str]:
    """Calls that were cut, doubled, spliced, or given what does not belong there."""
    rng = random.Random(0)
    chars = '{}[]",:;\\<>/=|\n\x00\u2028\U0001f600 tool_name1e9-.'
    for _ in range(n):
        text = whole * rng.randint(1, 2)
        for _ in range(rng.randint(1, 3)):
            at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
            match rng.randrange(4):
                case 0:
                    text = text[:at] + text[to:]
                case 1:
                    text = text[:at] + "".join(rng.choice(chars) for _ in range(rng.randint(1, 8))) + text[at:]
                case 2:
                    text = text[:to] + text[at:]
                case _:
                    text = text[:at] + rng.choice(MARKUP) + text[at:]
        yield text


@pytest.mark.parametrize("parser", PARSERS.values(), ids=PARSERS)
def test_ten_thousand_damaged_calls(parser: Parser) -> None:
    whole = f"<think>so</think>hi{parser.render_call('add', {'a': [1, 'é'], 'b': {}, 'c': 'x'})}bye"
    seen = {"error": 0, "good": 0}
    for turn, text in enumerate(damaged(whole, 10_000)):
        for call in check(parser, text, turn).tool_calls:
            seen["good" if call.error is None else "error"] += 1
    assert min(seen.values()) > 300, "the damage is real, and not total"


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 50_000,
        "<function=f>" * 50_000,
        "<tool_call><function=f>" + "<parameter=a>" * 50_000,
        "</function>" + " " * 100_000,
        "<function=f></function>" + " " * 100_000,
        '{"name":' * 50_000,
        "<|python_tag|>" * 50_000,
        "<|python_tag|>" + "[" * 100_000,
        '{"name": 1}' * 50_000,
        "<tool " * 50_000,
        '<tool name="f">' * 50_000,
        "<tool" + " " * 100_000,
        '{"name":' + " " * 100_000,
    ],
    ids=lambda text: text[:24],
)
@pytest.mark.timeout(10)
def test_long_nonsense_is_read_in_linear_time(text: str) -> None:
    for parser in PARSERS.values():
        check(parser, text, 0)


@pytest.mark.parametrize("name", PARSERS)
def test_formats_are_plugins_that_tell_the_model_about_themselves(name: str) -> None:
    parser = registry().create("parsers", name)
    assert type(parser) is type(PARSERS[name])
    spec = ToolSpec("add", "Add.", {"type": "object", "properties": {}, "required": []})
    text = parser.instructions([spec])
    assert spec.to_json() in text
    assert "NAME" in text


def one(parser: Parser, text: str) -> tuple[str, dict[str, Any], str | None, str]:
    action = parser.parse(text)
    (call,) = action.tool_calls
    return call.name, dict(call.arguments), call.error, action.text


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", {"a": 1}),
        ("<tool_call><function=f><parameter=a>x < y</parameter></function></tool_call>", {"a": "x < y"}),
        ("<function=f>\n<parameter=a>\n[1]\n</parameter>\n</function>\n</tool_call>", {"a": [1]}),
        ("<tool_call><function=f></function></tool_call>", {}),
        ("<tool_call><function=f><parameter=a>1<parameter=b>two</function></tool_call>", {"a": 1, "b": "two"}),
        ("<tool_call><function=f><parameter=a>\n  x\n\n</parameter></function>", {"a": "  x\n"}),
        ("<tool_call><function=f><parameter=a>NaN</parameter></function></tool_call>", {"a": "NaN"}),
    ],
)
def test_qwen3_xml_reads_what_models_write(text: str, arguments: dict[str, Any]) -> None:
    assert one(Qwen3XMLParser(), f"Now: {text}") == ("f", arguments, None, "Now:")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call>add(1)</tool_call>", "expected <function=NAME>"),
        ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', "expected <function=NAME>"),
        ("<tool_call><function=f>1</function></tool_call>", "expected <parameter=KEY>, found '1'"),
        ("<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>", "'a' is there twice"),
    ],
)
def test_qwen3_xml_says_what_is_wrong(text: str, problem: str) -> None:
    assert problem in (one(Qwen3XMLParser(), text)[2] or "")


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        ('{"name": "f", "parameters": {"a": 1}}', ""),
        ('{"parameters": {"a": 1}, "name": "f"}', ""),
        ('{"type": "function", "name": "f", "parameters": {"a": 1}}', ""),
        ('{"name": "f", "arguments": {"a": 1}}', ""),
        ('{"name": "f", "parameters": "{\\"a\\": 1}"}', ""),
        ('<|python_tag|>{"name": "f", "parameters": {"a": 1}}<|eom_id|>', ""),
        ('I add. <|python_tag|> {"name": "f", "parameters": {"a": 1}}', "I add."),
        ('Sure: {"name": "f", "parameters": {"a": 1}} done', "Sure: done"),
    ],
)
def test_llama3_json_reads_what_models_write(text: str, visible: str) -> None:
    assert one(Llama3JSONParser(), text) == ("f", {"a": 1}, None, visible)


def test_llama3_json_reads_several_calls() -> None:
    text = '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'
    assert [call.name for call in Llama3JSONParser().parse(text).tool_calls] == ["f", "g"]


@pytest.mark.parametrize("text", ['{"answer": 42}', '{"name": "Ada"}', '{"type": "point", "x": 1}', "{", "42"])
def test_llama3_json_leaves_other_json_in_the_answer(text: str) -> None:
    action = Llama3JSONParser().parse(text)
    assert (action.text, action.tool_calls) == (text, ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<|python_tag|>print(1)", "not valid JSON"),
        ('{"name": "f", "parameters": {"a": ', "not valid JSON"),
        ('<|python_tag|>{"parameters": {}}', 'expected an object with "name" and "parameters"'),
        ('{"name": "f", "parameters": [1]}', "must be an object"),
        ('{"name": "f", "parameters": {"a": NaN}}', "not valid JSON"),
    ],
)
def test_llama3_json_says_what_is_wrong(text: str, problem: str) -> None:
    assert problem in (one(Llama3JSONParser(), text)[2] or "")


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool name="f">{"a": 1}</tool>', {"a": 1}),
        ("<tool name='f'>\n{\"a\": 1}\n</tool>", {"a": 1}),
        ('<tool name="f"></tool>', {}),
        ('<tool  name = "f" >{"a": 1}', {"a": 1}),
    ],
)
def test_tags_read_what_models_write(text: str, arguments: dict[str, Any]) -> None:
    assert one(TagsParser(), f"Now: {text}") == ("f", arguments, None, "Now:")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool>{}</tool>", "expected <tool name="),
        ('<tool name="f">{oops</tool>', "arguments are not valid JSON"),
        ('<tool name="f">[1]</tool>', "must be an object"),
        ("<tool name=f>{}</tool>", "expected <tool name="),
    ],
)
def test_tags_say_what_is_wrong(text: str, problem: str) -> None:
    assert problem in (one(TagsParser(), text)[2] or "")


def test_tags_leave_other_tags_alone() -> None:
    action = TagsParser().parse("<tools>a</tools> <tool_call>b</tool_call> <toolbox>")
    assert action.tool_calls == ()
