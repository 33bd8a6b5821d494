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
        found = [_hermes_call(match.group(1), f"call_{turn}_{i}") for i, match in enumerate(_HERMES.finditer(text))]
        return _HERMES.sub("", text), tuple(found)

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}</tool_call>"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        schemas = "\n".join(tool.to_json() for tool in tools)
        return (
            "You may call these tools (JSON Schema, one per line):\n"
            f"{schemas}\n"
            'Write a call as <tool_call>{"name": NAME, "arguments": {...}}</tool_call>. '
            "Its result comes back in the next message."
        )


def _hermes_call(body: str, call_id: str) -> ToolCall:
    """A parsed call, or one with `error` set."""
    try:
        data = _read_json(body)
    except (ValueError, RecursionError) as error:
        return ToolCall(call_id, "", error=f"not valid JSON ({error})", raw=body)
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        return ToolCall(call_id, "", error='expected an object with "name" and "arguments"', raw=body)
    arguments = data.get("arguments", {})
    if isinstance(arguments, str):  # some models write the arguments as a JSON string
        try:
            arguments = _read_json(arguments)
        except (ValueError, RecursionError) as error:
            return ToolCall(call_id, data["name"], error=f"arguments are not valid JSON ({error})", raw=body)
    if not isinstance(arguments, dict):
        return ToolCall(call_id, data["name"], error="arguments must be an object", raw=body)
    return ToolCall(call_id, data["name"], arguments, raw=body)


def _read_json(text: str) -> Any:
    """Strict JSON. Raises `ValueError` also for what Python's reader lets through and later readers do not: NaN and
    infinities, and escaped halves of surrogate pairs, which no tokenizer and no file can encode."""
    data = json.loads(text)
    json.dumps(data, ensure_ascii=False, allow_nan=False).encode()
    return data
