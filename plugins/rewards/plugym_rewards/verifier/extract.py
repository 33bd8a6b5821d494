"""Finding the one asserted answer in a whole model answer.

What belongs here: `extract_answer` with its formats. Thinking is cut off first (an answer only inside it, or in
thinking that never ends, is none). The last non-empty marker counts, a marker named in prose without content does
not, a marker that was cut off before its end is no answer. Everything is one pass over the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .hedge import denied_around, denied_in_prose

EXTRACTIONS = ("boxed", "hash", "answer_tag", "last_number", "auto")

PLACEHOLDERS = frozenset(
    ("", "...", "…", "\\ldots", "\\dots", "answer", "your answer", "final answer", "your final answer")
)
MAX_BARE = 64  # characters of a whole response that may be an answer without any marker
MAX_SENTENCE = 2_000
CONTEXT = 40  # characters around a marker that are searched for a denial

_THINK = re.compile(r"<(/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_BOX = re.compile(r"\\f?boxed\s*\{|\\fbox\s*\{|\\.|[{}]", re.DOTALL)
_JOINED = re.compile(r"(?:[\s$]|\\text\{|\\quad|[}])*(?:or|and|,|;|\\lor|\\vee|/)(?:[\s$]|\\text\{|\\quad|[}]|or|and)*")
_HASH = re.compile(r"####[ \t]*([^\n]*)")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")
_CLAUSE_START = re.compile(r"(?i)[;:\n]|,\s|\b(?:so|therefore|thus|hence|but|then)\b")
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:or|and|sqrt|pi|sin|cos|tan|log|ln)\b)(?:[A-Za-z]{2,}|a(?= [a-z]{2}))(?![A-Za-z{])"
)
_TAKEN_BACK = re.compile(r"(?i)\W*(?:no|not|wait|wrong|actually|incorrect|that'?s? (?:is )?(?:wrong|not|incorrect))\b")
_LOOSE_START = re.compile(r"^[-–—=:]+\s+|^=")
_WORD = re.compile(r"[A-Za-z]+\.?")
_LONE_NUMBER = re.compile(r"[-$\s]*[\d.,]+[\s%]*")


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
    try:
        return _FORMATS[how](visible)
    except _NoAnswer:
        return None


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


class _NoAnswer(Exception):
    """The last marker was never closed, or its content is denied right beside it."""


def _last_box(text: str) -> str | None:
    r"""The content of the last outermost \boxed{...} that is not a placeholder, or None without one.

    Boxes joined by "or", "and" or a comma are one list of answers.
    """
    if "\\boxed" not in text and "\\fbox" not in text:
        return None
    boxes = [box for box in _boxes(text) if not _is_placeholder(text[box.start : box.end])]
    if not boxes:
        return None
    last = boxes.pop()
    before, after = text[max(0, last.mark - CONTEXT) : last.mark], text[last.end + 1 : last.end + 1 + CONTEXT]
    if denied_around(before, after):
        raise _NoAnswer
    contents = [text[last.start : last.end].strip()]
    while boxes and _JOINED.fullmatch(text, boxes[-1].end + 1, last.mark):
        last = boxes.pop()
        contents.append(text[last.start : last.end].strip())
    return ", ".join(reversed(contents))


class _Box(NamedTuple):
    """Positions of a box: its backslash, its content, its closing brace."""

    mark: int
    start: int
    end: int


def _boxes(text: str) -> list[_Box]:
    """The outermost complete boxes in order; raises _NoAnswer when the last one is not closed."""
    opened: list[tuple[int, int] | None] = []  # an open box, or None for another brace
    boxes: list[_Box] = []
    for token in _BOX.finditer(text):
        mark = token[0]
        if mark == "{":
            opened.append(None)
        elif mark == "}":
            box = opened.pop() if opened else None
            if box is not None:
                while boxes and boxes[-1].start > box[1]:  # nested in this one
                    boxes.pop()
                boxes.append(_Box(*box, token.start()))
        elif len(mark) > 2:
            opened.append(token.span())
    last_end = boxes[-1].end if boxes else -1
    if any(box is not None and box[0] > last_end for box in opened):
        raise _NoAnswer
    return boxes


def _is_placeholder(content: str) -> bool:
    return len(content) < CONTEXT and re.sub(r"\\text\{|[{}$]", "", content).strip().lower() in PLACEHOLDERS


def _hashes(text: str) -> list[tuple[int, str]]:
    """(position, content) of each #### line, markdown headings (#### Step 2: add) left out."""
    found = [(m.start(), m[1].strip()) for m in _HASH.finditer(text) if not _is_placeholder(m[1])]
    return [(at, line) for at, line in found if not (line[0].isalpha() and len(_PROSE.findall(line)) > 1)]


def _tags(text: str) -> list[tuple[int, str]]:
    """(position, content) of each closed <answer>...</answer>."""
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
        raise _NoAnswer
    return found


def _last(marked: list[tuple[int, str]]) -> str | None:
    """The content of the last marker; a box inside it is unwrapped."""
    if not marked:
        return None
    content = max(marked)[1]
    return (_last_box(content) if content.count("boxed") == 1 else None) or content


def _auto(text: str) -> str | None:
    found = _last_box(text) or _last(_hashes(text) + _tags(text))
    if found is not None:
        return found
    bare = text.strip()
    if len(bare) <= MAX_BARE and "\n" not in bare and (_WORD.fullmatch(bare) or not _PROSE.search(bare)):
        return bare or None
    return _last_number(text)


def _last_number(text: str) -> str | None:
    """The mathematics around the last number of the text, taken as a whole.

    A list stays a list and a fraction a fraction, so that a spray of candidates is no answer. Of a calculation
    (48 + 24 = 72) the last side counts, but `107 = 100` stays a relation. A denied number is no answer.
    """
    at = max(text.rfind(digit) for digit in "0123456789")
    if at < 0:
        return None
    start = floor = max(0, at - MAX_SENTENCE)
    for sentence in _SENTENCE_END.finditer(text, floor, at + 1):
        start = sentence.end()
    ending = _SENTENCE_END.search(text, at + 1, at + MAX_SENTENCE)
    stop = ending.start() if ending else min(len(text), at + MAX_SENTENCE)
    before, after = text[start : at + 1], text[at + 1 : stop]

    clause = before[max((m.end() for m in _CLAUSE_START.finditer(before)), default=0) :]
    asked = ending is not None and ending[0] == "?"
    if asked or denied_in_prose(clause) or denied_in_prose(after) or _TAKEN_BACK.match(text, stop):
        raise _NoAnswer
    words = list(_PROSE.finditer(before))
    following = _PROSE.search(after)
    run = before[words[-1].end() if words else 0 :] + after[: following.start() if following else None]
    run = _LOOSE_START.sub("", run.replace("**", " ").strip(" \t,;:.!`\"'"))
    if words and run.startswith("or "):
        raise _NoAnswer
    return _last_side(run.removeprefix("and "))


def _last_side(run: str) -> str:
    sides = run.split("=")
    return run if len(sides) < 2 or _LONE_NUMBER.fullmatch(sides[0]) else sides[-1].strip()


_FORMATS: dict[str, Callable[[str], str | None]] = {
    "boxed": _last_box,
    "hash": lambda text: _last(_hashes(text)),
    "answer_tag": lambda text: _last(_tags(text)),
    "last_number": _last_number,
    "auto": _auto,
}
