"""Fixtures of the verifier tests: case files and one algebra worker for all tests."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugym_rewards.verifier.algebra import AlgebraPool

REPOSITORY = Path(__file__).parents[4]
DATA = REPOSITORY / "tests" / "data" / "verifier"
SHARED = REPOSITORY / os.environ.get("PLUGYM_SHARED", "../shared") / "data" / "math"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`case_file("name.jsonl")` on a test gives it one `case` per line; a file that is absent gives one skip."""
    mark = metafunc.definition.get_closest_marker("parametrize_cases")
    if mark is None:
        return
    path = (SHARED if mark.kwargs.get("shared") else DATA) / mark.args[0]
    if path.exists():
        cases: list[Any] = [
            pytest.param(case, id=f"{i}-{case['category'].replace(' ', '-')}")
            for i, case in enumerate(map(json.loads, path.read_text(encoding="utf-8").splitlines()), 1)
        ]
    else:
        reason = f"{path} is absent: set PLUGYM_SHARED to the folder with the shared data"
        cases = [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="absent")]
    metafunc.parametrize("case", cases)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "parametrize_cases(name, shared): one test per line of a case file")


@pytest.fixture(scope="session")
def algebra() -> Iterator[AlgebraPool]:
    pytest.importorskip("math_verify", reason="needs the extra `math`")
    with AlgebraPool() as pool:
        pool.start()
        yield pool
