"""Chat turns to text: a Hugging Face tokenizer as a `ChatTokenizer`, and the fallback for templates without tools.

The tokenizer is duck-typed (`apply_chat_template`, `encode`, `decode`), so that this module imports no transformers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from plugym.errors import BadInput
from plugym.message import Message, ToolCall, ToolSpec
from plugym.rollout.parsers import HermesParser, Parser

SENTINEL = "\u2402plugym\u2403"
"""Stands for an assistant turn while the text after it is looked up; no model writes it."""

_PROBE_TOOL = ToolSpec("plugym_probe_tool", "probe", {"type": "object", "properties": {}, "required": []})
_PROBE = (
    Message("user", "u"),
    Message("assistant", "", tool_calls=(ToolCall("call_0", "plugym_probe_tool", {}),)),
    Message("tool", "plugym probe result", tool_call_id="call_0"),
)


class HFChatTokenizer:
    """A transformers tokenizer with a chat template.

    `parser` is the call format used when the template has no tools branch: schemas go into the system message, calls
    into the assistant's text and results into user turns.
    """

    def __init__(self, tokenizer: Any, eos_ids: Sequence[int], parser: Parser | None = None) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = tuple(int(i) for i in eos_ids)
        self.parser = parser or HermesParser()

    @property
    def eos_ids(self) -> Sequence[int]:
        return self._eos_ids

    @cached_property
    def supports_tools(self) -> bool:
        """Tried, not guessed: schemas, calls and results must all show up in the rendering."""
        try:
            text = self._template(_PROBE, (_PROBE_TOOL,), False)
        except Exception:  # a template may raise anything; that is the answer to the question
            return False
        return text.count("plugym_probe_tool") >= 2 and "plugym probe result" in text

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool) -> str:
        if any(message.images for message in messages):
            raise BadInput("this model's tokenizer takes text only: the environment sent an image")
        needs_tools = bool(tools) or any(m.role == "tool" or m.tool_calls for m in messages)
        if needs_tools and not self.supports_tools:
            return self._template(without_tools(messages, tools, self.parser), (), generation_prompt)
        return self._template(messages, tools, generation_prompt)

    def _template(self, messages: Sequence[Message], tools: Sequence[ToolSpec], generation_prompt: bool) -> str:
        text: str = self._tokenizer.apply_chat_template(
            [message.to_openai() for message in messages],
            tools=[tool.to_openai() for tool in tools] or None,
            add_generation_prompt=generation_prompt,
            tokenize=False,
        )
        return text

    def encode(self, text: str) -> list[int]:
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text


def without_tools(messages: Sequence[Message], tools: Sequence[ToolSpec], parser: Parser) -> list[Message]:
    """The same conversation for a template that knows only system, user and assistant.

    >>> call = ToolCall("c", "add", {"a": 1})
    >>> chat = [
    ...     Message("user", "hi"),
    ...     Message("assistant", "", tool_calls=(call,)),
    ...     Message("tool", "2", tool_call_id="c"),
    ... ]
    >>> [(m.role, m.text) for m in without_tools(chat, (), HermesParser())][-1]
    ('user', 'Tool result: 2')
    """
    out: list[Message] = []
    if tools:
        head = messages[0].text if messages and messages[0].role == "system" else ""
        text = "\n\n".join(part for part in (head, parser.instructions(tools)) if part)
        out.append(Message("system", text))
        messages = messages[1:] if messages and messages[0].role == "system" else messages
    for message in messages:
        if message.role == "tool":
            text = f"Tool result: {message.text}"
            if out and out[-1].role == "user":  # results of parallel calls share one user turn
                out[-1] = dataclasses.replace(out[-1], content=f"{out[-1].text}\n{text}")
            else:
                out.append(Message("user", text))
        elif message.tool_calls:
            calls = "".join(parser.render_call(c.name, dict(c.arguments)) for c in message.tool_calls)
            out.append(Message("assistant", message.text + calls, message.reasoning))
        else:
            out.append(message)
    return out


def continuation(tokenizer: Any, new: Sequence[Message], tools: Sequence[ToolSpec]) -> str | None:
    """The text that follows an assistant turn's content when `new` messages are appended: the turn's closing marker,
    the new messages and the next generation prompt. None when the template cannot say (it rewrites or refuses)."""
    skeleton = (Message("user", "u"), Message("assistant", SENTINEL), *new)
    try:
        text: str = tokenizer.render(skeleton, tools, generation_prompt=True)
    except BadInput:
        raise
    except Exception:  # a template that refuses this order of roles: the caller re-renders instead
        return None
    _, found, tail = text.rpartition(SENTINEL)
    return tail if found else None
