"""From what the model wrote to an `Action`: reasoning split and tool-call formats (group `plugym.parsers`).

A parser never raises on model text. Something that looks like a call and cannot be read becomes a `ToolCall` with its
`error` set, so that the model is told and the mistake is counted.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from plugym.message import Action, ToolCall, ToolSpec


class ParserConfig(BaseModel, extra="forbid"):
    """Settings of a parser that has none."""


class Parser(ABC):
    """One tool-call format. `instructions` is what a model without a tools template is told about it."""

    Config: ClassVar[type[BaseModel]] = ParserConfig

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    @abstractmethod
    def calls(self, text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
        """The visible text with the calls taken out, and the calls with ids unique within the episode."""

    @abstractmethod
    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        """A call as the model would write it; the inverse of `calls` for one call."""

    @abstractmethod
    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        """Text for the system message when the chat template cannot render tools."""

    def parse(self, raw: str, turn: int = 0) -> Action:
        """The assistant turn in `raw` (special tokens already removed)."""
        reasoning, visible = split_reasoning(raw)
        text, calls = self.calls(visible, turn)
        return Action(text=text.strip(), reasoning=reasoning, tool_calls=calls, raw=raw)


def split_reasoning(raw: str) -> tuple[str, str]:
    """(reasoning, visible text). Thinking that was opened and never closed has no visible text.

    A template may have opened the block in the prompt, so a lone `</think>` closes one too.

    >>> split_reasoning("<think>hm</think>42")
    ('hm', '42')
    >>> split_reasoning("<think>is it 42")
    ('is it 42', '')
    """
    head, closed, tail = raw.rpartition("</think>")
    if closed:
        return head.replace("<think>", "", 1).replace("</think>", "").strip(), tail.lstrip()
    before, opened, inside = raw.partition("<think>")
    if opened and not before.strip():
        return inside.strip(), ""
    return "", raw


class PlainParser(Parser):
    """No tool calls: the visible text is the action."""

    def calls(self, text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
        return text, ()

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        raise NotImplementedError("the plain format has no tool calls: choose --rollout.parser hermes")

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        return ""


_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


class HermesParser(Parser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes and Qwen2.5/3 models write calls.

    >>> action = HermesParser().parse('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')
    >>> action.tool_calls[0].name, dict(action.tool_calls[0].arguments)
    ('add', {'a': 1})
    >>> HermesParser().parse("<tool_call>{oops</tool_call>").tool_calls[0].error is None
    False
    """

    def calls(self, text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
        found = [json_call(match.group(1), f"call_{turn}_{i}") for i, match in enumerate(_HERMES.finditer(text))]
        return _HERMES.sub("", text), tuple(found)

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        return f"<tool_call>{render_json({'name': name, 'arguments': arguments})}</tool_call>"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        return tool_instructions(tools, '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>')


# What follows is shared by the formats that write JSON; those beyond Hermes are in `plugym.rollout.formats`.


def tool_instructions(tools: Sequence[ToolSpec], form: str) -> str:
    """What a model without a tools template is told: the schemas, and the `form` of a call."""
    schemas = "\n".join(tool.to_json() for tool in tools)
    return (
        "You may call these tools (JSON Schema, one per line):\n"
        f"{schemas}\n"
        f"Write a call as {form}. "
        "Its result comes back in the next message."
    )


def json_call(body: str, call_id: str, keys: Sequence[str] = ("arguments",)) -> ToolCall:
    """The call in a JSON object with "name" and one of `keys`, or a call with `error` set.

    >>> json_call('{"name": "add", "arguments": {"a": 1}}', "c").arguments
    {'a': 1}
    """
    try:
        data = read_json(body)
    except (ValueError, RecursionError) as error:
        return ToolCall(call_id, "", error=f"not valid JSON ({error})", raw=body)
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return ToolCall(call_id, "", error=f'expected an object with "name" and "{keys[0]}"', raw=body)
    arguments: Any = next((data[key] for key in keys if key in data), {})
    return call_with(call_id, data["name"], arguments, body)


def call_with(call_id: str, name: str, arguments: Any, raw: str) -> ToolCall:
    """A call whose arguments are an object, or that object as a JSON string, as some models write it."""
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(call_id, name, error=f"arguments are not valid JSON ({error})", raw=raw)
    if not isinstance(arguments, dict):
        return ToolCall(call_id, name, error="arguments must be an object", raw=raw)
    return ToolCall(call_id, name, arguments, raw=raw)


def read_json(text: str) -> Any:
    """Strict JSON. Raises `ValueError` also for what Python's reader lets through and later readers do not: NaN and
    infinities, and escaped halves of surrogate pairs, which no tokenizer and no file can encode. `RecursionError` for
    what is nested too deeply."""
    data = json.loads(text)
    json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    return data


_TAG_START = re.compile(r"<(?=[/|A-Za-z])")


def render_json(data: Any) -> str:
    """JSON in which no string can be taken for a tag: a `<` that begins one is written as an escape.

    >>> render_json({"a": "</tool_call>", "b": "1 < 2"})
    '{"a": "\\\\u003c/tool_call>", "b": "1 < 2"}'
    """
    return _TAG_START.sub(r"\\u003c", json.dumps(data, ensure_ascii=False))
