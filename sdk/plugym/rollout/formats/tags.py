"""Plain tags, for models that were taught no format of their own: the name as an attribute, the arguments as JSON.

<tool name="add">{"a": 1}</tool>
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any

from plugym.message import ToolCall, ToolSpec
from plugym.rollout.parsers import Parser, call_with, render_json, tool_instructions

_CALL = re.compile(r"<tool(?=[\s>])([^<>]*)>(.*?)(?:</tool>|\Z)", re.DOTALL)
_NAME = re.compile(r"""\s*name\s*=\s*(?:"([^"]*)"|'([^']*)')\s*""")


class TagsParser(Parser):
    """The name is escaped as in HTML; a call without arguments may be empty.

    >>> call = TagsParser().parse('Let me add. <tool name="add">{"a": 1}</tool>').tool_calls[0]
    >>> call.name, dict(call.arguments)
    ('add', {'a': 1})
    """

    def calls(self, text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
        found = [_call(match, f"call_{turn}_{i}") for i, match in enumerate(_CALL.finditer(text))]
        return _CALL.sub("", text), tuple(found)

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        return f'<tool name="{html.escape(name)}">{render_json(arguments)}</tool>'

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        return tool_instructions(tools, '<tool name="NAME">{...}</tool>, the arguments as a JSON object')


def _call(match: re.Match[str], call_id: str) -> ToolCall:
    name = _NAME.fullmatch(match.group(1))
    if name is None:
        return ToolCall(call_id, "", error='expected <tool name="NAME">', raw=match.group())
    written = name.group(2) if name.group(1) is None else name.group(1)
    return call_with(call_id, html.unescape(written), match.group(2).strip() or "{}", match.group())
