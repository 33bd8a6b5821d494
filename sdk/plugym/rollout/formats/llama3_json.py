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
_START = re.compile(r'<\|python_tag\|>\s*|\{\s*"(?:name|parameters|type)"\s*:')
_AFTER = re.compile(r"[\s;]*(?:<\|e(?:om|ot)_id\|>)?")
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
        at = 0
        while start := _START.search(text, at):
            tagged = start.group().startswith(_TAG)
            visible.append(text[at : start.start()])
            begin = start.end() if tagged else start.start()
            end, data = _object(text, begin)
            if tagged or data is None or ("name" in data and any(key in data for key in _KEYS)):
                found.append(json_call(text[begin:end], f"call_{turn}_{len(found)}", _KEYS))
                after = _AFTER.match(text, end)
                at = after.end() if after else end
            else:
                visible.append(text[begin:end])
                at = end
        return "".join((*visible, text[at:])), tuple(found)

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        return _TAG + render_json({"name": name, "parameters": arguments})

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        return tool_instructions(tools, '{"name": NAME, "parameters": {...}} and nothing else')


def _object(text: str, begin: int) -> tuple[int, dict[str, Any] | None]:
    """Where the object at `begin` ends, and the object; None where there is none that can be read, and then it takes
    up all the text to the next tag."""
    try:
        data, end = _decode(text, begin)
    except (ValueError, RecursionError):
        data, end = None, begin
    if isinstance(data, dict):
        return end, data
    following = text.find(_TAG, begin)
    return (len(text) if following < 0 else following), None
