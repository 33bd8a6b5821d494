"""Finding the one asserted answer in a whole model answer.

What belongs here: `extract_answer` with its formats. Thinking is cut off first (an answer only inside it, or in
thinking that never ends, is none). The last non-empty marker counts, a marker named in prose without content does
not, a marker that was cut off before its end is no answer. Everything is one pass over the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .hedge import denied_around, denied_in_prose

EXTRACTIONS = ("boxed", "hash", "answer_tag", "last_number", "auto")

PLACEHOLDERS = frozenset(("", "...", "…", "\\ldots", "\\dots", "answer", "your answer", "final answer", "your final answer"))
MAX_BARE = 64  # characters of a whole response that may be an answer without any marker
CONTEXT = 40  # characters around a marker that are searched for a denial

_THINK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_BOX = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{|\\.|[{}]", re.DOTALL)
_HASH = re.compile(r"####[ \t]*([^\n]*)")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_NUMBER = re.compile(r"\d")
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_CLAUSE_START = re.compile(r"(?i)[;:\n]|,\s|\b(?:so|therefore|thus|hence|but|then|and so)\b")
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:or|and|sqrt|pi|sin|cos|tan|log|ln)\b)[A-Za-z]{2,}(?![A-Za-z{])")
_LONE_NUMBER = re.compile(r"[-+$\s]*[\d.,]+[\s%]*")


def extract_answer(text: str, how: str = "boxed") -> str | None:
    """The content of the answer slot, or None where no answer is asserted. Linear in the length of the text.

    `how` is one of `EXTRACTIONS`; "auto" takes a box, else `####` or `<answer>` (the later one), else the last
    number, else a short response as it stands. Raises ValueError for another `how`.

    >>> extract_answer(r"The format \\boxed{} is required. \\boxed{100}")
    '100'
    >>> extract_answer(r"\\boxed{100} no, \\boxed{107}")
    '107'
    """
    if how not in EXTRACTIONS:
        raise ValueError(f"unknown extraction {how!r}; use one of {', '.join(EXTRACTIONS)}")
    visible = without_thinking(text)
    if visible is None:
        return None
    return _FORMATS[how](visible)


def without_thinking(text: str) -> str | None:
    """The text outside <think>...</think>; None when thinking never ends.

    An opening tag may be missing: templates put it into the prompt.
    """
    if "<" not in text:
        return text
    kept: list[str] = []
    start, inside = 0, False
    for tag in _THINK.finditer(text):
        if tag[1]:
            if not inside:
                kept.clear()
            start, inside = tag.end(), False
        elif not inside:
            kept.append(text[start : tag.start()])
            inside = True
    return None if inside else "".join([*kept, text[start:]])


class _Cut(Exception):
    """The last marker was opened and never closed."""


def _last_box(text: str) -> str | None:
    r"""The content of the last outermost \boxed{...} that is not a placeholder; raises _Cut."""
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    opened: list[int | None] = []  # where the content of an open box starts; None for another brace
    boxes: list[tuple[int, int]] = []
    for token in _BOX.finditer(text):
        mark = token[0]
        if mark == "{":
            opened.append(None)
        elif mark == "}":
            start = opened.pop() if opened else None
            if start is not None:
                while boxes and boxes[-1][0] > start:  # nested in this one
                    boxes.pop()
                boxes.append((start, token.start()))
        elif mark[-1] == "{" and len(mark) > 2:
            opened.append(token.end())
    last_end = boxes[-1][1] if boxes else -1
    if any(start is not None and start > last_end for start in opened):
        raise _Cut
    for start, end in reversed(boxes):
        content = text[start:end].strip()
        if not _is_placeholder(content):
            before = text[max(0, start - CONTEXT) : start].rpartition("\\")[0]
            return None if denied_around(before, text[end + 1 : end + 1 + CONTEXT]) else content
    return None


def _is_placeholder(content: str) -> bool:
    return re.sub(r"\\text\{|[{}$]", "", content).strip().lower() in PLACEHOLDERS


def _boxed(text: str) -> str | None:
    try:
        return _last_box(text)
    except _Cut:
        return None


def _hashes(text: str) -> list[tuple[int, str]]:
    return [(m.start(), m[1].strip()) for m in _HASH.finditer(text) if not _is_placeholder(m[1])]


def _tags(text: str) -> list[tuple[int, str]]:
    """(position, content) of each closed <answer>...</answer>; raises _Cut when the last one never closes."""
    found: list[tuple[int, str]] = []
    opened: int | None = None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            opened = tag.end()
        elif opened is not None:
            content = text[opened : tag.start()].strip()
            if not _is_placeholder(content):
                found.append((opened, content))
            opened = None
    if opened is not None:
        raise _Cut
    return found


def _inside(marked: list[tuple[int, str]]) -> str | None:
    """The content of the last marker; a box inside it is unwrapped."""
    if not marked:
        return None
    content = max(marked)[1]
    return _last_box(content) or content


def _hash(text: str) -> str | None:
    try:
        return _inside(_hashes(text))
    except _Cut:
        return None


def _answer_tag(text: str) -> str | None:
    try:
        return _inside(_tags(text))
    except _Cut:
        return None


def _auto(text: str) -> str | None:
    try:
        if "\\boxed" in text or "\\fbox" in text:
            boxed = _last_box(text)
            if boxed is not None:
                return boxed
        marked = _inside(_hashes(text) + _tags(text))
    except _Cut:
        return None
    if marked is not None:
        return marked
    bare = text.strip()
    if len(bare) <= MAX_BARE and "\n" not in bare and not _PROSE.search(bare):
        return bare or None
    return _last_number(text)


def _last_number(text: str) -> str | None:
    """The mathematics around the last number of the text, taken as a whole.

    A list stays a list and a fraction a fraction, so that a spray of candidates is no answer. Of a calculation
    (48 + 24 = 72) the last side counts, but `107 = 100` stays a relation. A denied number is no answer.
    """
    end = max((i for i in range(len(text) - 1, -1, -1) if text[i].isdigit()), default=None)
    if end is None:
        return None
    start = 0
    for stop in _SENTENCE_END.finditer(text, max(0, end - 2_000), end):
        start = stop.end()
    start = max(start, end - 2_000)
    sentence_end = _SENTENCE_END.search(text, end + 1)
    stop = min(sentence_end.start() if sentence_end else len(text), end + 2_000)
    before, after = text[start : end + 1], text[end + 1 : stop]
    words = list(_PROSE.finditer(before))
    run = before[words[-1].end() :] if words else before
    following = _PROSE.search(after)
    run = (run + (after[: following.start()] if following else after)).strip(" \t,;:.!?*`\"'—–-=")
    if words and re.match(r"\s*-\d", before[words[-1].end() :]):
        run = "-" + run
    clause = before[max((m.end() for m in _CLAUSE_START.finditer(before)), default=0) :]
    if denied_in_prose(clause) or denied_in_prose(text[end + 1 : end + 400]):
        return None
    return _last_side(run) or None


def _last_side(run: str) -> str:
    sides = run.split("=")
    if len(sides) < 2 or _LONE_NUMBER.fullmatch(sides[0]):
        return run
    return sides[-1].strip()


_FORMATS: dict[str, Callable[[str], str | None]] = {
    "boxed": _boxed,
    "hash": _hash,
    "answer_tag": _answer_tag,
    "last_number": _last_number,
    "auto": _auto,
}
