"""Messages, actions and tool schemas, and their form on the wire."""

from __future__ import annotations

import json
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from plugym.message import Action, ImagePart, Message, TextPart, ToolCall, ToolSpec, transcript
from plugym.spaces import AgentAction, Messages

CALL = ToolCall("c1", "add", {"a": 1})
BROKEN = ToolCall("c2", "", error="not JSON", raw="{oops")


def test_the_wire_format_has_what_is_set_and_nothing_else() -> None:
    assert Message("user", "hi").to_openai() == {"role": "user", "content": "hi"}
    assert Message("tool", "3", tool_call_id="c1").to_openai() == {
        "role": "tool",
        "content": "3",
        "tool_call_id": "c1",
    }
    assert Message("assistant", "", "hm", (CALL,)).to_openai() == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
    }


def test_images_and_text_keep_their_order() -> None:
    message = Message("user", (TextPart("a"), ImagePart(b"\x00\xff", "image/jpeg"), TextPart("b")))
    assert (message.text, len(message.images)) == ("ab", 1)
    assert message.to_openai()["content"] == [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,AP8="}},
        {"type": "text", "text": "b"},
    ]
    assert Message("user", "a").images == ()


def test_an_action_becomes_the_assistants_message() -> None:
    assert Action("x", "why", (CALL,), "raw").message() == Message("assistant", "x", "why", (CALL,))
    partly = Action("x", "", (CALL, BROKEN), "x <as written>").message()
    assert partly == Message("assistant", "x <as written>", "", (CALL,)), "what could not be parsed stays as written"


@given(st.text(), st.text())
def test_messages_compare_by_value(text: str, other: str) -> None:
    assert (Message("user", text) == Message("user", other)) is (text == other)
    assert Action.of(text) == Action(text=text, raw=text)


def search(query: str, limit: int = 5, *, sort: Literal["date", "rank"] = "rank", tags: list[str] | None = None) -> str:
    """Search the
    archive.

    Args:
        query: what to look for: any words
        tags: only with these
    """
    return query


def test_a_schema_comes_from_hints_and_docstring() -> None:
    spec = ToolSpec.from_function(search, "find")
    assert (spec.name, spec.description) == ("find", "Search the archive.")
    parameters = dict(spec.parameters)
    assert parameters["required"] == ["query"]
    assert parameters["properties"]["query"] == {"type": "string", "description": "what to look for: any words"}
    assert parameters["properties"]["limit"] == {"type": "integer"}
    assert parameters["properties"]["sort"]["enum"] == ["date", "rank"]
    assert parameters["properties"]["tags"]["description"] == "only with these"
    assert json.loads(spec.to_json())["function"]["parameters"] == parameters


class Point(BaseModel):
    x: int


def test_references_in_a_schema_resolve_from_its_root() -> None:
    def draw(start: Point, path: list[Point]) -> None:
        """Draw."""

    parameters = ToolSpec.from_function(draw).parameters
    assert set(parameters["$defs"]) == {"Point"}
    assert parameters["properties"]["path"]["items"] == {"$ref": "#/$defs/Point"}
    assert "$defs" not in parameters["properties"]["start"]


def test_a_parameter_without_a_hint_cannot_be_offered() -> None:
    def bare(x): ...  # type: ignore[no-untyped-def]

    with pytest.raises(TypeError, match="'bare': parameter 'x' needs a type hint"):
        ToolSpec.from_function(bare)


def test_a_transcript_is_readable() -> None:
    chat = [
        Message("user", (TextPart("look"), ImagePart(b"x"))),
        Message("assistant", "ok", tool_calls=(CALL,)),
        Message("tool", "3", tool_call_id="c1"),
    ]
    assert transcript(chat) == 'user: look [image]\nassistant: ok [call add({"a": 1})]\ntool: 3'


def test_spaces_contain_what_they_sample_and_nothing_foreign() -> None:
    messages, actions = Messages(seed=0), AgentAction(("add",), seed=0)
    for _ in range(20):
        assert messages.contains(messages.sample())
        assert actions.contains(actions.sample())
    assert {call.name for _ in range(20) for call in actions.sample().tool_calls} == {"add"}
    for foreign in ("text", [Message("user", "x")], ("x",), None):
        assert not messages.contains(foreign)
    assert not actions.contains("text")
    assert messages.to_jsonable([(Message("user", "x"),)]) == [[{"role": "user", "content": "x"}]]
    assert Messages(seed=1) == Messages(seed=2)
    assert AgentAction(("a",)) != AgentAction(("b",))
    first, second = Messages(seed=3), Messages(seed=3)
    assert [first.sample() for _ in range(5)] == [second.sample() for _ in range(5)]
