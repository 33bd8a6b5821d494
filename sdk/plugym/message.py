"""What is said in an episode: messages, their parts, tool calls, and the assistant's `Action`.

Everything here is immutable and compares by value, so observations can be checked for determinism with `==`.
`Message.to_openai()` is the one place that knows the wire format of chat endpoints and chat templates.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_type_hints

from pydantic import TypeAdapter

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of text inside a message that also holds images."""

    text: str


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An encoded image (PNG or JPEG bytes), never a URL: a stored episode must replay without a network."""

    data: bytes
    media_type: str = "image/png"


Content = str | tuple[TextPart | ImagePart, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call the assistant asked for.

    `error` is set when the text looked like a call but could not be parsed: it is kept, answered with a tool message
    that says so, and counted. `raw` is the text as the model wrote it.
    """

    id: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. `content` is text, or parts where images take part."""

    role: Role
    content: Content = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The textual content; images are left out."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def images(self) -> tuple[ImagePart, ...]:
        if isinstance(self.content, str):
            return ()
        return tuple(part for part in self.content if isinstance(part, ImagePart))

    def to_openai(self) -> dict[str, Any]:
        """The dictionary that OpenAI-compatible servers and Hugging Face chat templates take.

        >>> Message("user", "hi").to_openai()
        {'role': 'user', 'content': 'hi'}
        """
        out: dict[str, Any] = {"role": self.role, "content": _content_to_openai(self.content)}
        if self.reasoning:
            out["reasoning_content"] = self.reasoning
        if self.tool_calls:
            out["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": dict(c.arguments)}}
                for c in self.tool_calls
            ]
        if self.tool_call_id is not None:
            out["tool_call_id"] = self.tool_call_id
        return out


def _content_to_openai(content: Content) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content:
        if isinstance(part, TextPart):
            parts.append({"type": "text", "text": part.text})
        else:
            url = f"data:{part.media_type};base64,{base64.b64encode(part.data).decode()}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
    return parts


@dataclass(frozen=True, slots=True)
class Action:
    """The assistant's turn, as an environment receives it.

    `text` is the visible answer with reasoning and tool calls taken out; `raw` is what the model produced.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    raw: str = ""

    @classmethod
    def of(cls, text: str) -> Action:
        """An action that is plain text.

        >>> Action.of("42").raw
        '42'
        """
        return cls(text=text, raw=text)

    def message(self) -> Message:
        """The assistant message of this turn. A call that could not be parsed stays in the text, as it was written."""
        calls = tuple(call for call in self.tool_calls if call.error is None)
        text = self.text if len(calls) == len(self.tool_calls) else self.raw
        return Message("assistant", text, self.reasoning, calls)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as the model sees it: name, description and a JSON Schema of its arguments (draft 2020-12)."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def to_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}

    def to_json(self) -> str:
        return json.dumps(self.to_openai(), ensure_ascii=False)

    @classmethod
    def from_function(cls, function: Callable[..., Any], name: str | None = None) -> ToolSpec:
        """Read a schema from type hints and the docstring (summary, then an `Args:` block of `name: text` lines).

        Raises `TypeError` when a parameter has no type hint: a tool without a schema cannot be offered to a model.

        >>> def add(a: int, b: int = 0) -> int:
        ...     '''Add two numbers.
        ...
        ...     Args:
        ...         a: the first
        ...     '''
        ...     return a + b
        >>> spec = ToolSpec.from_function(add)
        >>> spec.description, spec.parameters["required"]
        ('Add two numbers.', ['a'])
        """
        hints = get_type_hints(function)
        summary, docs = _split_docstring(inspect.getdoc(function) or "")
        properties: dict[str, Any] = {}
        required: list[str] = []
        definitions: dict[str, Any] = {}  # references are to the root of the whole schema
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name == "self":
                continue
            if parameter.name not in hints:
                raise TypeError(f"tool {function.__name__!r}: parameter {parameter.name!r} needs a type hint")
            schema = TypeAdapter(hints[parameter.name]).json_schema()
            definitions |= schema.pop("$defs", {})
            if parameter.name in docs:
                schema["description"] = docs[parameter.name]
            properties[parameter.name] = schema
            if parameter.default is inspect.Parameter.empty:
                required.append(parameter.name)
        parameters = {"type": "object", "properties": properties, "required": required}
        if definitions:
            parameters["$defs"] = definitions
        return cls(name or function.__name__, summary, parameters)


def _split_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """Summary line(s) before `Args:`, and the text of each argument."""
    summary, _, tail = doc.partition("Args:")
    docs: dict[str, str] = {}
    for line in tail.splitlines():
        name, colon, text = line.strip().partition(":")
        if colon and name.isidentifier():
            docs[name] = text.strip()
    return " ".join(summary.split()), docs


def transcript(messages: Sequence[Message]) -> str:
    """A readable one-message-per-line rendering for logs and judges of plain text; images become `[image]`."""
    lines = []
    for message in messages:
        calls = "".join(f" [call {c.name}({json.dumps(dict(c.arguments))})]" for c in message.tool_calls)
        lines.append(f"{message.role}: {message.text}{' [image]' * len(message.images)}{calls}")
    return "\n".join(lines)
