"""Problems from a JSONL file: one JSON object a line, read line by line.

Here it is decided which columns hold question and answer, what the reference answer is in canonical text, and
which rows are held out. A file is input from outside: whatever is wrong with it becomes one `BadInput` line
that names the file and the line.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from plugym.errors import BadInput
from plugym.task import Task

PresetName = Literal["auto", "gsm8k", "svamp", "aime24", "amc23", "generic"]


@dataclass(frozen=True, slots=True)
class Preset:
    """Where a published data set keeps things. Several question columns are read as one text.

    `marker` precedes the final answer where the answer column holds a worked solution.
    """

    question: tuple[str, ...]
    answer: str
    marker: str | None = None


MARKER = "####"

PRESETS: Mapping[str, Preset] = {
    "gsm8k": Preset(("question",), "answer", marker=MARKER),
    "svamp": Preset(("Body", "Question"), "Answer"),
    "aime24": Preset(("problem",), "answer"),
    "amc23": Preset(("problem",), "answer"),
    "generic": Preset(("question",), "answer"),
}

_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?")
_LEADING_ZEROS = re.compile(r"([+-]?)0+([0-9]+)")


def read_problems(
    path: Path,
    *,
    preset: PresetName = "auto",
    question_column: str | None = None,
    answer_column: str | None = None,
    eval_share: float = 0.1,
) -> Iterator[Task]:
    """The problems of a file in order; `instruction` is the bare question.

    A row belongs to `eval` when a hash of its question falls into the lowest `eval_share` of all hashes, so equal
    questions are always on the same side, whatever the order of the rows and the run's seed.

    Raises:
        BadInput: the file cannot be read or is empty, a row cannot be parsed, or a column is missing.
    """
    layout: Preset | None = None
    for number, row in _rows(path):
        if layout is None:
            layout = _layout(row, preset, question_column, answer_column)
        _require_columns(path, number, row, layout)
        try:
            yield _task(path, number, row, layout, eval_share)
        except ValueError as error:
            raise BadInput(f"{path}:{number}: {error}") from error
    if layout is None:
        raise BadInput(f"{path} is empty: it must hold one JSON object a line")


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of every line that is not blank."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, _parse(path, number, line)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from error


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"), parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}:{number}: not valid JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadInput(f"{path}:{number}: not readable: nested too deeply") from error
    except ValueError as error:
        raise BadInput(f"{path}:{number}: not readable: {error}") from error
    if not isinstance(row, dict):
        raise BadInput(f"{path}:{number}: not a JSON object; each line must be one, such as {{...}}")
    return row


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _layout(row: Mapping[str, Any], preset: PresetName, question: str | None, answer: str | None) -> Preset:
    """The columns to read: the preset's, or those that the first row has, with the user's own on top."""
    names = ("svamp", "aime24", "generic") if preset == "auto" else (preset,)
    layouts = [
        replace(
            PRESETS[name],
            question=PRESETS[name].question if question is None else (question,),
            answer=answer or PRESETS[name].answer,
        )
        for name in names
    ]
    layout = next((known for known in layouts if {*known.question, known.answer} <= set(row)), layouts[-1])
    if preset == "auto" and MARKER in str(row.get(layout.answer)):
        layout = replace(layout, marker=MARKER)
    return layout


def _require_columns(path: Path, number: int, row: Mapping[str, Any], layout: Preset) -> None:
    for column in (*layout.question, layout.answer):
        if column not in row:
            raise BadInput(
                f"{path}:{number}: no column {column!r}; columns present: {_names(row)}; "
                "set preset, or question_column and answer_column"
            )


def _names(row: Mapping[str, Any], most: int = 20) -> str:
    names = [name if name.isprintable() else repr(name) for name in sorted(row)]
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return ", ".join([*names[:most], *more]) or "none"


def _task(path: Path, number: int, row: Mapping[str, Any], layout: Preset, eval_share: float) -> Task:
    question = join_texts([_text(row, column) for column in layout.question])
    try:
        answer = answer_text(row[layout.answer], layout.marker)
    except ValueError as error:
        raise ValueError(f"column {layout.answer!r}: {error}") from error
    content = hashlib.sha256(f"{question}\0{answer}".encode()).hexdigest()
    same = hashlib.sha256(" ".join(question.split()).encode()).digest()
    held_out = int.from_bytes(same[:8], "big") < eval_share * 2**64
    return Task(
        # The content is part of the id: two files of one name must not pass for the same problems.
        id=f"math/{path.stem}/{number}-{content[:8]}",
        env="math",
        split="eval" if held_out else "train",
        instruction=question,
        answer=answer,
        data={"line": number},
    )


def _text(row: Mapping[str, Any], column: str) -> str:
    value = row[column]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"column {column!r} must hold text")
    return value.strip()


def join_texts(texts: list[str]) -> str:
    """The texts as sentences one after the other.

    >>> join_texts(["If Tom has 3 apples", "How many has he?"])
    'If Tom has 3 apples. How many has he?'
    """
    *before, last = texts
    return " ".join([*(text if text[-1] in ".,;:?!" else f"{text}." for text in before), last])


def answer_text(value: Any, marker: str | None = None) -> str:
    """A reference answer as text: whole numbers without decimals, thousands separators and leading zeros.

    With `marker`, only what follows its last occurrence counts. Raises `ValueError` for what is no answer.

    >>> answer_text(8.0), answer_text("025"), answer_text("16 - 4 = 12 #### 1,012", "####")
    ('8', '25', '1012')
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("the number is too large")
        return str(int(value)) if value.is_integer() else repr(value)
    if not isinstance(value, str):
        raise ValueError("an answer is text or a number")
    text = value
    if marker is not None:
        _, found, text = value.rpartition(marker)
        if not found:
            raise ValueError(f"no {marker!r} before the final answer")
    text = text.strip()
    if not text:
        raise ValueError("the answer is empty")
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return _LEADING_ZEROS.sub(r"\1\2", text) if _LEADING_ZEROS.fullmatch(text) else text
