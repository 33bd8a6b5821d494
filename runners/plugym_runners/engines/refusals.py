"""What went wrong with one try, and what a server means by a refusal: unknown parameter, overflow, come back later.

`Flaw` is one failed try; `Refusal` one that came with an HTTP status. Servers word refusals freely, so what is read
here are the names of our own parameters and the numbers beside the word "context".
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

T = TypeVar("T")

_RETRY = {408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529}
_OVERRUN = {429, 503, 529}
_LIMIT = re.compile(r"(?:maximum context length is|context size|max_model_len|model's context)\D{0,20}(\d+)")
_PROMPT = re.compile(
    r"> \d+ - (\d+)\)"  # vLLM: (256 > 512 - 300)
    r"|(\d+) (?:input tokens|prompt tokens|in the messages|tokens in the messages)"
    r"|\bprompt contains (?:at least )?(\d+)"
)
_OVERFLOW = re.compile(
    r"maximum context length|context_length_exceeded|context size|exceeds? the (?:max_model_len|model's context)|"
    r"(?:prompt|input) (?:is too long|length)|longer than the maximum model length",
    re.IGNORECASE,
)


class Flaw(Exception):
    """One try failed. `kind` is what it is counted as; `retry` whether another try may help."""

    def __init__(self, kind: str, message: str, *, retry: bool = True) -> None:
        super().__init__(message)
        self.kind = kind
        self.retry = retry


class Refusal(Flaw):
    """The server answered, and the answer is an error. `after` is the pause in seconds it asks for."""

    def __init__(self, status: int, text: str, after: float | None = None) -> None:
        self.status = status
        self.text = text
        self.after = after
        self.overrun = status in _OVERRUN
        super().__init__(f"status_{status}", f"HTTP {status}: {_said(text)}", retry=status in _RETRY)

    def hiding(self, secrets: Sequence[str]) -> Refusal:
        """The same without these words, should the server have repeated them."""
        return Refusal(self.status, hide(self.text, secrets), self.after)


def hide(text: str, secrets: Sequence[str]) -> str:
    """
    >>> hide("no such key: abc", ["abc"])
    'no such key: ***'
    """
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _said(text: str) -> str:
    """The message inside an error body, on one line, at most 300 characters."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        data = text
    while isinstance(data, dict):
        data = next((data[key] for key in ("error", "message", "detail", "msg") if data.get(key)), json.dumps(data))
    line = " ".join(str(data).split()) or "no reason given"
    return line if len(line) <= 300 else f"{line[:297]}..."


def error_in(payload: Mapping[str, Any]) -> Refusal | None:
    """The error in a body that came with status 200, as gateways and streams send it."""
    error = payload.get("error")
    if not error:
        return None
    code = str(error.get("code", error.get("status"))) if isinstance(error, dict) else ""
    # Without a status of its own it counts as the server's fault.
    status = int(code) if re.fullmatch(r"[45]\d\d", code, re.ASCII) else 500
    return Refusal(status, json.dumps({"error": error}))


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds the server asks to wait (RFC 9110, 10.2.3: seconds or a date; `retry-after-ms` as some send it).

    >>> retry_after({"Retry-After": "2"}), retry_after({"retry-after-ms": "250"}), retry_after({"Retry-After": "soon"})
    (2.0, 0.25, None)
    """
    values = {name.lower(): value.strip() for name, value in headers.items()}
    for name, scale in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = values.get(name, "")
        if re.fullmatch(r"\d{1,9}(\.\d*)?", value, re.ASCII):
            return float(value) * scale
    try:
        return max(parsedate_to_datetime(values["retry-after"]).timestamp() - time.time(), 0.0)
    except (KeyError, ValueError, OverflowError):
        return None


def refused_parameter(refusal: Refusal, sent: Collection[str]) -> str | None:
    """The parameter of `sent` that the server does not take, if that is what it says.

    >>> refused_parameter(Refusal(400, '{"detail": [{"loc": ["body", "top_k"], "msg": "Extra inputs"}]}'), ["top_k"])
    'top_k'
    """
    if refusal.status not in (400, 422):
        return None
    text = refusal.text
    # Longest first: `logprobs` is part of `top_logprobs`, and the earliest mention is the subject.
    names = "|".join(re.escape(name) for name in sorted(sent, key=len, reverse=True))
    found = re.search(rf"(?<![A-Za-z0-9_])(?:{names})(?![A-Za-z0-9_])", text) if names else None
    return found.group() if found else None


def overflow(refusal: Refusal) -> tuple[int, int] | tuple[()] | None:
    """None when this is no context overflow; else (context length, prompt length) where the server gives both.

    >>> overflow(Refusal(400, "maximum context length is 512 tokens and your request has 300 input tokens"))
    (512, 300)
    >>> overflow(Refusal(400, "This prompt is too long"))
    ()
    """
    if refusal.status not in (400, 413, 422) or not _OVERFLOW.search(refusal.text):
        return None
    limit, prompt = _LIMIT.search(refusal.text), _PROMPT.search(refusal.text)
    if limit is None or prompt is None:
        return ()
    return int(limit.group(1)), int(next(group for group in prompt.groups() if group))


def checked(read: Callable[[Any], T], payload: Any) -> T:
    """`read(payload)`, where whatever `read` stumbles over is a `Flaw`: what a server sends may have any shape."""
    try:
        return read(payload)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"the answer does not have the shape of one ({type(error).__name__}: {error})"
        raise Flaw("bad_answer", problem) from error
