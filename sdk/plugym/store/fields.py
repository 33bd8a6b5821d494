"""Field types of the records: text, JSON values and token arrays, each with its way from memory to JSON.

What belongs here is how one value is written, not what a record holds (`record.py`). Arrays that are constant within
a turn are written as runs of (value, length); ids and log-probs as plain lists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field, PlainValidator


def _text(value: Any) -> str:
    # pydantic's own string type refuses lone surrogates, which json.loads makes of a model's "\ud800".
    if not isinstance(value, str):
        raise ValueError(f"expected text, got {type(value).__name__}")
    return value


def _json(value: Any) -> Any:
    """A copy in plain JSON types. Tuples become lists and numpy scalars Python numbers."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.generic):
        return _json(value.item())
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, Mapping):
        return {_text(key): _json(item) for key, item in value.items()}
    raise ValueError(f"{type(value).__name__} has no JSON form")


def to_runs(array: npt.NDArray[Any]) -> list[tuple[int, int]]:
    """A piecewise constant array as (value, length) pairs.

    >>> to_runs(np.array([0, 0, 1]))
    [(0, 2), (1, 1)]
    """
    if len(array) == 0:
        return []
    starts = np.concatenate([[0], np.flatnonzero(array[1:] != array[:-1]) + 1])
    values = array[starts].astype(np.int64).tolist()
    return list(zip(values, np.diff(starts, append=len(array)).tolist(), strict=True))


def from_runs(runs: list[tuple[int, int]], size: int) -> npt.NDArray[np.int64]:
    """The inverse of `to_runs`: int64[size].

    Raises `ValueError` for runs of another total length, before memory is taken for them: a damaged file may claim any.

    >>> from_runs([(0, 2), (1, 1)], 3).tolist()
    [0, 0, 1]
    """
    total = sum(length for _, length in runs)
    if total != size:
        raise ValueError(f"runs of {total} tokens in a stream of {size}")
    table = np.array(runs, dtype=np.int64).reshape(-1, 2)
    return np.repeat(table[:, 0], table[:, 1])


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _run_lengths(value: Any) -> Any:
    return to_runs(value) if isinstance(value, np.ndarray) else value


Text = Annotated[str, PlainValidator(_text)]
Json = Annotated[dict[str, Any], BeforeValidator(_json)]
Numbers = Annotated[list[int], BeforeValidator(_listed)]
Floats = Annotated[list[float], BeforeValidator(_listed)]
Runs = Annotated[list[tuple[int, Annotated[int, Field(gt=0)]]], BeforeValidator(_run_lengths)]
