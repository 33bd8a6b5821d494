"""What a user or a crash may leave in a file: run settings, data sets, case files, metrics and stored episodes. Each is
read, or refused with `BadInput` in one line that names the file.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fuzzing import damaged, fuzz, seeds
from hypothesis import given
from hypothesis import strategies as st
from strategies import groups

from plugym.config import ALIASES, Layers, RunSpec, environment_layer, file_layer, flag_layer
from plugym.errors import BadInput
from plugym.store import GroupWriter, RunDir, read_groups
from plugym.trajectory import ScoredGroup
from plugym_envs.math.data import PRESETS, read_problems
from plugym_runners.cli.grade import read_cases

DATA = Path(__file__).parents[1] / "data"
RECIPES = Path(__file__).parents[2] / "runners" / "plugym_runners" / "recipes"

BYTES = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\n", b"=", b".", b"#", b"\\", b"\x00", b"\xff", b"\xed\xa0\x80"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"[" * 2000, b"\\ud800", b"\xef\xbb\xbf", b"-1"),
]


def refusal_of(read: Callable[[], Any]) -> str | None:
    """None where the input was read; every exception that is not `BadInput` goes through."""
    try:
        read()
    except BadInput as error:
        return str(error) or "nothing"
    return None


# --- settings -----------------------------------------------------------------------------------------------------

RUN_FILES = [path.read_bytes() for path in sorted(RECIPES.glob("*.toml"))] + [
    b'env = "math"\nalgo = "grpo"\n[reward.x]\nplugin = "verifier"\nweight = 2\n[reward.y]\nplugin = "judge"\na = []\n',
    b'reward = "verifier"\nenv.name = "math"\nenv.level = 1\nalgo = "grpo"\n[rollout]\ntop_p = 0.5\n[train]\nlr = 1\n',
]
SETTINGS = [
    *(
        b"[env]\n",
        b"[env.name]\n",
        b"[[reward]]\n",
        b'[reward]\nx = "judge"\n',
        b"[reward.x]\n",
        b"reward = 3\n",
        b"[run]\n",
    ),
    *(b'env = ["math"]\n', b"algo = {}\n", b"algo = 1\n", b'"null"', b"1979-05-27T07:32:00Z", b"inf", b"nan", b"-1"),
]
keys = st.sampled_from(
    [*RunSpec.model_fields, *ALIASES, "reward.x", "reward.x.y", "env.name", "env.a.b", "run.hooks", ""]
)
dotted = st.lists(keys | st.text("ab.-_=", max_size=4), min_size=1, max_size=2).map(".".join)
values = st.sampled_from(["1", "math", "null", "[1", "{a = 1}", "[]", "", "x=judge@d:0.5", "-inf", "true"]) | st.text(
    max_size=4
)
flags = st.lists(st.tuples(dotted, values), max_size=4)
variables = st.dictionaries(
    st.lists(keys, min_size=1, max_size=3).map(lambda parts: "PLUGYM_" + "__".join(parts).upper().replace(".", "__")),
    values,
    max_size=2,
)


@given(whole=st.sampled_from(RUN_FILES), seed=seeds, flags=flags, variables=variables)
@fuzz
def test_settings(
    tmp_path_factory: pytest.TempPathFactory,
    whole: bytes,
    seed: int,
    flags: list[tuple[str, str]],
    variables: dict[str, str],
) -> None:
    path = tmp_path_factory.getbasetemp() / "run.toml"
    refusal_of(lambda: flag_layer(flags))
    refusal_of(lambda: environment_layer(variables))
    for number, content in enumerate(damaged(whole, seed, SETTINGS + BYTES)):
        path.write_bytes(content)

        def read(with_more: bool = number % 4 == 0) -> RunSpec:
            layers = Layers()
            layers.add(file_layer(path), "file")
            if with_more:
                layers.add(environment_layer(variables), "environment")
                layers.add(flag_layer(flags), "flag")
            return layers.spec()

        refusal = refusal_of(read)
        assert number > 0 or flags or variables or refusal is None, refusal


# --- JSON lines ---------------------------------------------------------------------------------------------------

PROBLEMS = [path.read_bytes() for path in sorted((DATA / "math").glob("*.jsonl"))]


@given(st.sampled_from(PROBLEMS), st.sampled_from(["auto", *PRESETS]), seeds)
@fuzz
def test_problems(tmp_path_factory: pytest.TempPathFactory, whole: bytes, preset: Any, seed: int) -> None:
    path = tmp_path_factory.getbasetemp() / "problems.jsonl"
    for content in damaged(whole, seed, BYTES):
        path.write_bytes(content)
        refusal = refusal_of(lambda: list(read_problems(path, preset=preset)))
        assert refusal is None or (str(path) in refusal and len(refusal.splitlines()) == 1), refusal


@given(st.sampled_from((DATA / "verifier" / "answers.jsonl").read_bytes().splitlines()[:20]), seeds)
@fuzz
def test_case_files(tmp_path_factory: pytest.TempPathFactory, whole: bytes, seed: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cases.jsonl"
    for content in damaged(whole, seed, BYTES):
        path.write_bytes(content)
        refusal = refusal_of(lambda: read_cases(path))
        assert refusal is None or str(path) in refusal, refusal


rows = st.lists(st.dictionaries(st.text(max_size=6), st.floats(), max_size=3), min_size=1, max_size=4)


@given(rows, seeds)
@fuzz
def test_metrics(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]], seed: int) -> None:
    run = RunDir(tmp_path_factory.getbasetemp())
    whole = b"".join(json.dumps({**row, "step": step}).encode() + b"\n" for step, row in enumerate(rows))
    for content in damaged(whole, seed, BYTES):
        run.metrics_path.write_bytes(content)
        refusal = refusal_of(run.read_metrics)
        assert refusal is None or str(run.metrics_path) in refusal, refusal


# --- stored episodes ----------------------------------------------------------------------------------------------


@given(groups(), seeds)
@fuzz
def test_stored_groups(tmp_path_factory: pytest.TempPathFactory, group: ScoredGroup, seed: int) -> None:
    path = tmp_path_factory.getbasetemp() / "groups.jsonl.gz"
    writer = GroupWriter(path)
    writer.write(group)
    writer.commit()
    packed = path.read_bytes()
    line = gzip.decompress(packed)
    texts = (gzip.compress(content, compresslevel=0) for content in damaged(line, seed, BYTES, 80))
    for content in (*texts, *damaged(packed, seed, BYTES, 20)):
        path.write_bytes(content)
        refusal = refusal_of(lambda: list(read_groups(path)))
        assert refusal is None or str(path) in refusal, refusal
