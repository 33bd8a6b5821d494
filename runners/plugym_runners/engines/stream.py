"""Streamed answers: server-sent events from bytes that arrive in any pieces, and one answer out of many chunks.

The result has the shape of an answer that was not streamed, so `wire` reads both alike.
"""

from __future__ import annotations

import json
import operator
from collections.abc import AsyncIterable, Iterator
from typing import Any

from plugym_runners.engines.refusals import Flaw, error_in

_LONGEST_EVENT = 16 * 2**20


class EventParser:
    r"""Server-sent events (HTML standard, 9.2) fed in pieces; yields the data of each finished event.

    >>> parser = EventParser()
    >>> list(parser.feed(b"data: a")), list(parser.feed(b"b\r\n\r")), list(parser.feed(b"\ndata: c\n\n"))
    ([], ['ab'], ['c'])
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._after_cr = False

    def feed(self, piece: bytes) -> Iterator[str]:
        """Raises `Flaw` for an event beyond 16 MiB or one that is not UTF-8."""
        if self._after_cr and piece:
            piece = piece.removeprefix(b"\n")
            self._after_cr = False
        if piece.endswith(b"\r"):
            self._after_cr = True
        lines = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for number, line in enumerate(lines):
            self._line += line
            self._size += len(line)
            if self._size > _LONGEST_EVENT:
                raise Flaw("bad_stream", "the stream has an event of more than 16 MiB")
            if number < len(lines) - 1:
                yield from self._end_line()

    def _end_line(self) -> Iterator[str]:
        line = bytes(self._line)
        self._line.clear()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif not line:
            if self._data:
                try:
                    yield b"\n".join(self._data).decode()
                except UnicodeDecodeError as error:
                    raise Flaw("bad_stream", f"the stream is not UTF-8: {error.reason}") from error
            self._data.clear()
            self._size = 0


async def assemble(pieces: AsyncIterable[bytes]) -> dict[str, Any]:
    """Read a streamed answer to its end. Raises `Flaw` when it is cut, damaged, or turns into an error."""
    parser, answer = EventParser(), Assembly()
    async for piece in pieces:
        for data in parser.feed(piece):
            if data == "[DONE]":
                return answer.result()
            answer.add(data)
    return answer.result()


class Assembly:
    """One answer out of its chunks. Only the first choice is kept: one is asked for."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._text: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._chat = False

    def add(self, data: str) -> None:
        """Take in the data of one event."""
        try:
            chunk = json.loads(data)
            error = error_in(chunk)
            if error is not None:
                raise error
            if "prompt_token_ids" in chunk:
                self._answer["prompt_token_ids"] = chunk["prompt_token_ids"]
            for choice in chunk.get("choices") or ():
                if choice.get("index", 0) == 0:
                    self._add_choice(choice)
        except (ValueError, RecursionError) as error:
            raise Flaw("bad_stream", f"an event of the stream is not JSON: {data[:80]!r}") from error
        except (TypeError, AttributeError, KeyError) as error:
            raise Flaw("bad_stream", f"an event of the stream is no chunk of an answer: {data[:80]!r}") from error

    def _add_choice(self, choice: dict[str, Any]) -> None:
        if choice.get("finish_reason"):
            self._choice["finish_reason"] = choice["finish_reason"]
        if choice.get("prompt_token_ids"):
            self._choice["prompt_token_ids"] = choice["prompt_token_ids"]
        if choice.get("token_ids"):
            self._choice.setdefault("token_ids", []).extend(choice["token_ids"])
        for name, values in (choice.get("logprobs") or {}).items():
            if isinstance(values, list):
                self._choice.setdefault("logprobs", {}).setdefault(name, []).extend(values)
        if "text" in choice:
            self._text.setdefault("text", []).append(_string(choice["text"]))
        delta = choice.get("delta")
        if delta is not None:
            self._chat = True
            for name in ("content", "reasoning_content", "reasoning", "refusal"):
                if delta.get(name):
                    self._text.setdefault(name, []).append(_string(delta[name]))
            for call in delta.get("tool_calls") or ():
                self._add_call(call)

    def _add_call(self, piece: dict[str, Any]) -> None:
        call = self._calls.setdefault(
            operator.index(piece.get("index", 0)), {"id": "", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = call["id"] or piece.get("id") or ""
        function = piece.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += _string(function.get(name))

    def result(self) -> dict[str, Any]:
        """The whole answer. Raises `Flaw` when the stream ended before it did."""
        if not self._choice.get("finish_reason"):
            started = "in the middle of the answer" if self._text or self._calls else "before the answer began"
            raise Flaw("cut_stream", f"the stream ended {started}")
        text = {name: "".join(pieces) for name, pieces in self._text.items()}
        if self._chat:
            calls = [self._calls[index] for index in sorted(self._calls)]
            self._choice["message"] = {"content": None, **text, "tool_calls": calls}
        else:
            self._choice["text"] = text.get("text", "")
        return {**self._answer, "choices": [self._choice]}


def _string(value: Any) -> str:
    if not isinstance(value, str | None):
        raise TypeError(f"text was expected, not {type(value).__name__}")
    return value or ""
