"""The JSON calls of Llama 3.1 and later: a bare object, sometimes after `<|python_tag|>`, several apart by `;`.

<|python_tag|>{"name": "add", "parameters": {"a": 1}}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from plugym.message import ToolCall, ToolSpec
from plugym.rollout.parsers import Parser, json_call, render_json, tool_instructions

_TAG = "<|python_tag|>"
_START = re.compile(r'\{\s*"(?:name|parameters|type)"\s*:')
_AFTER = re.compile(r"[\s;]*(?:<\|e(?:om|ot)_id\|>)?")
_SPACE = re.compile(r"\s*")
_KEYS = ("parameters", "arguments")
_decode = json.JSONDecoder().raw_decode


class Llama3JSONParser(Parser):
    """Whatever follows the tag is a call. Without it, an object is one if it has a name and parameters; other JSON is
    part of the answer.

    >>> call = Llama3JSONParser().parse('{"name": "add", "parameters": {"a": 1}}').tool_calls[0]
    >>> call.name, dict(call.arguments)
    ('add', {'a': 1})
    >>> Llama3JSONParser().parse('{"name": "Ada", "born": 1815}').text
    '{"name": "Ada", "born": 1815}'
    """

    def calls(self, text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
        visible: list[str] = []
        found: list[ToolCall] = []
        # Part by part, because looking for the place of an error takes the reader as long as all the text before it.
        for number, part in enumerate(text.split(_TAG)):
            self._read(part, number > 0, turn, visible, found)
        return "".join(visible), tuple(found)

    def _read(self, text: str, tagged: bool, turn: int, visible: list[str], found: list[ToolCall]) -> None:
        """The calls in a text that begins behind a tag, or has none."""
        at, begin = 0, 0 if tagged else _next(text, 0)
        while begin >= 0:
            visible.append(text[at:begin])
            end, data = _object(text, begin)
            if tagged or data is None or ("name" in data and any(key in data for key in _KEYS)):
                found.append(json_call(text[begin:end].strip(), f"call_{turn}_{len(found)}", _KEYS))
                end = _skip(_AFTER, text, end)
            else:
                visible.append(text[begin:end])
            at, tagged = end, False
            begin = _next(text, at)
        visible.append(text[at:])

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        return _TAG + render_json({"name": name, "parameters": arguments})

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        return tool_instructions(tools, '{"name": NAME, "parameters": {...}} and nothing else')


def _next(text: str, at: int) -> int:
    """Where the next object that may be a call begins, -1 when there is none."""
    found = _START.search(text, at)
    return found.start() if found else -1


def _object(text: str, begin: int) -> tuple[int, dict[str, Any] | None]:
    """Where the object at `begin` ends, and the object; None, and all the rest, where none can be read."""
    try:
        data, end = _decode(text, _skip(_SPACE, text, begin))
    except (ValueError, RecursionError):
        return len(text), None
    return (end, data) if isinstance(data, dict) else (len(text), None)


def _skip(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Where the match at `at` ends."""
    found = pattern.match(text, at)
    return found.end() if found else at
