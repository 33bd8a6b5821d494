"""The XML calls of Qwen3-Coder and later Qwen models: one element per parameter, values mostly as plain text.

<tool_call>
<function=add>
<parameter=a>
1
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from plugym.message import ToolCall, ToolSpec
from plugym.rollout.parsers import Parser, read_json, render_json, tool_instructions

# These models sometimes forget the opening tag, and a cut turn has no closing one.
_CALL = re.compile(
    r"<tool_call>(.*?)(?:</tool_call>|\Z)|(<function=.*?(?:</function>|\Z))(?:\s*</tool_call>)?", re.DOTALL
)
_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>(.*)\Z", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)\s*", re.DOTALL)
_MARKUP = re.compile(r"</?(?:parameter|function|tool_call|think)")


class Qwen3XMLParser(Parser):
    """A value is JSON where it reads as JSON, else text as it stands; a text that reads as JSON is written quoted.

    >>> parser = Qwen3XMLParser()
    >>> call = parser.parse(parser.render_call("f", {"n": 1, "code": "x = 1"})).tool_calls[0]
    >>> call.name, dict(call.arguments)
    ('f', {'n': 1, 'code': 'x = 1'})
    """

    def calls(self, text: str, turn: int) -> tuple[str, tuple[ToolCall, ...]]:
        bodies = [match.group(1) if match.group(2) is None else match.group(2) for match in _CALL.finditer(text)]
        return _CALL.sub("", text), tuple(_call(body, f"call_{turn}_{i}") for i, body in enumerate(bodies))

    def render_call(self, name: str, arguments: dict[str, Any]) -> str:
        """Names of tools and parameters must not hold `<`, `>` or line breaks."""
        values = (f"<parameter={key}>\n{_written(value)}\n</parameter>\n" for key, value in arguments.items())
        return f"<tool_call>\n<function={name}>\n{''.join(values)}</function>\n</tool_call>"

    def instructions(self, tools: Sequence[ToolSpec]) -> str:
        form = "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>"
        return tool_instructions(tools, f"\n{form}\nwith one parameter element per argument")


def _call(body: str, call_id: str) -> ToolCall:
    function = _FUNCTION.match(body.rstrip().removesuffix("</function>"))
    if function is None:
        return ToolCall(call_id, "", error="expected <function=NAME> inside <tool_call>", raw=body)
    name, inside = function.group(1).strip(), function.group(2)
    arguments: dict[str, Any] = {}
    at = 0
    while at < len(inside) and (found := _PARAMETER.match(inside, at)):
        key = found.group(1).strip()
        if key in arguments:
            return ToolCall(call_id, name, error=f"the parameter {key!r} is there twice", raw=body)
        arguments[key] = _value(found.group(2))
        at = found.end()
    if rest := inside[at:].strip():
        return ToolCall(call_id, name, error=f"expected <parameter=KEY>, found {rest[:40]!r}", raw=body)
    return ToolCall(call_id, name, arguments, raw=body)


def _value(text: str) -> Any:
    text = text.removeprefix("\n").removesuffix("\n")
    try:
        return read_json(text)
    except (ValueError, RecursionError):  # plain text, the usual case
        return text


def _written(value: Any) -> str:
    """The inverse of `_value`."""
    if isinstance(value, str) and not _MARKUP.search(value) and _value(f"\n{value}\n") == value:
        return value
    return render_json(value)
