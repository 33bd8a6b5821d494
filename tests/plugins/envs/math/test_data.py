"""Problems from files: known formats, canonical answers, stable held-out rows, and one clear line for bad input."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugym.errors import BadInput
from plugym.task import Task
from plugym_envs.math import MathConfig, MathEnv
from plugym_envs.math.data import PRESETS, answer_text, read_problems

ROOT = Path(__file__).resolve().parents[4]
SAMPLES = ROOT / "tests" / "data" / "math"
SHARED = Path(os.environ.get("PLUGYM_SHARED", ROOT.parent / "shared")) / "data" / "math"

WriteFile = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> WriteFile:
    def write_lines(*lines: Any) -> Path:
        path = tmp_path / "problems.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("".join(f"{text}\n" for text in texts))
        return path

    return write_lines


def answers(tasks: Iterable[Task]) -> list[str | None]:
    return [task.answer for task in tasks]


@pytest.mark.parametrize("preset", ["auto", "named"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gsm8k", ["72", "10", "1080"]),
        ("svamp", ["145", "19", "3"]),
        ("aime24", ["25", "15"]),
        ("amc23", ["12", "-0.5"]),
    ],
)
def test_known_formats(name: Any, expected: list[str], preset: str) -> None:
    tasks = list(read_problems(SAMPLES / f"{name}.jsonl", preset="auto" if preset == "auto" else name))
    assert answers(tasks) == expected
    assert all(task.instruction and "####" not in task.instruction for task in tasks)


def test_body_and_question_become_one_text() -> None:
    first, second, _ = read_problems(SAMPLES / "svamp.jsonl")
    assert first.instruction.endswith("organized into 93 groups. How big is each group of bananas?")
    assert second.instruction.endswith("strawberries weighed 30 pounds. How much did Marco's strawberries weigh?")


@pytest.mark.parametrize(
    ("file", "rows"),
    [("gsm8k_train", 7473), ("gsm8k_test", 1319), ("svamp", 1000), ("aime24", 30), ("amc23", 40)],
)
def test_full_files(file: str, rows: int) -> None:
    path = SHARED / f"{file}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there; set PLUGYM_SHARED")
    tasks = list(read_problems(path))
    assert len(tasks) == len({task.id for task in tasks}) == rows
    # The answers of these sets are whole numbers, whatever their columns make of them.
    assert all(re.fullmatch(r"0|-?[1-9][0-9]*", task.answer or "") for task in tasks)
    share = sum(task.split == "eval" for task in tasks) / rows
    assert abs(share - 0.1) < 3 * (0.09 / rows) ** 0.5


@pytest.mark.parametrize(
    ("value", "marker", "text"),
    [
        (8.0, None, "8"),
        (0.5, None, "0.5"),
        (-3, None, "-3"),
        ("1,234,567", None, "1234567"),
        ("1,5", None, "1,5"),
        ("(1,234)", None, "(1,234)"),
        ("007", None, "7"),
        ("-007", None, "-7"),
        ("000", None, "0"),
        ("0.50", None, "0.50"),
        (" \\frac{1}{2} ", None, "\\frac{1}{2}"),
        ("a #### 1 #### 2,000 ", "####", "2000"),
    ],
)
def test_answer_text(value: Any, marker: str | None, text: str) -> None:
    assert answer_text(value, marker) == text


@pytest.mark.parametrize("value", [None, True, [1], {"a": 1}, "", "  ", float("inf"), float("nan")])
def test_what_is_no_answer(value: Any) -> None:
    with pytest.raises(ValueError, match=r"answer|number"):
        answer_text(value)


def test_columns_of_the_users_own(write: WriteFile) -> None:
    path = write({"input": "1+1?", "target": 2.0}, {"input": "2+2?", "target": 4.0})
    assert answers(read_problems(path, question_column="input", answer_column="target")) == ["2", "4"]


def test_a_worked_solution_is_recognised_in_any_column(write: WriteFile) -> None:
    path = write({"q": "1+1?", "a": "one and one #### 2"})
    assert answers(read_problems(path, question_column="q", answer_column="a")) == ["2"]


def test_override_on_top_of_a_preset(write: WriteFile) -> None:
    path = write({"problem": "1+1?", "answer": "no", "final": 2})
    assert answers(read_problems(path, preset="aime24", answer_column="final")) == ["2"]


def test_generic_keeps_an_answer_as_it_is(write: WriteFile) -> None:
    path = write({"question": "half?", "answer": "\\frac{1}{2}"})
    assert answers(read_problems(path)) == ["\\frac{1}{2}"]


GOOD = {"question": "1+1?", "answer": "2"}


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], r"problems\.jsonl is empty"),
        (["", "  "], r"problems\.jsonl is empty"),
        ([GOOD, "{not json"], r":2: not valid JSON: .* at column 2"),
        ([GOOD, "", "[1]"], r":3: not a JSON object"),
        (["NaN"], r":1: not readable: NaN is not a number"),
        (['{"question": "q", "answer": Infinity}'], r":1: not readable: Infinity"),
        (['{"question": "q", "answer": 1e999}'], r":1: column 'answer': the number is too large"),
        (["[" * 100_000], r":1: not readable: nested too deeply"),
        (['{"question": "\\ud800", "answer": "1"}'], r":1: .*surrogates not allowed"),
        (
            [GOOD, {"question": "q", "solution": "1"}],
            r":2: no column 'answer'; columns present: question, solution",
        ),
        ([{"input": "q", "target": 1}], r":1: no column 'question'; columns present: input, target; set"),
        ([{}], r":1: no column 'question'; columns present: none"),
        ([{"question": "", "answer": "1"}], r":1: column 'question' must hold text"),
        ([{"question": 5, "answer": "1"}], r":1: column 'question' must hold text"),
        ([{"question": "q", "answer": None}], r":1: column 'answer': an answer is text or a number"),
        ([{"question": "q", "answer": "#### 1"}, GOOD], r":2: column 'answer': no '####' before the final answer"),
        ([{"question": "q", "answer": "why ####"}], r":1: column 'answer': the answer is empty"),
    ],
)
def test_bad_input(write: WriteFile, lines: list[Any], says: str) -> None:
    with pytest.raises(BadInput, match=says) as caught:
        list(read_problems(write(*lines)))
    assert "\n" not in str(caught.value)


def test_missing_file_directory_and_bad_encoding(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*nothing\.jsonl: No such file"):
        list(read_problems(tmp_path / "nothing.jsonl"))
    with pytest.raises(BadInput, match=r"cannot read .*: Is a directory"):
        list(read_problems(tmp_path))
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "caf\xe9", "answer": "1"}\n')
    with pytest.raises(BadInput, match=r"latin\.jsonl:1: not readable: 'utf-8' codec"):
        list(read_problems(tmp_path / "latin.jsonl"))


def test_rows_are_read_as_they_are_needed(write: WriteFile) -> None:
    reader = read_problems(write(GOOD, "broken"))
    assert next(reader).answer == "2"
    with pytest.raises(BadInput, match=":2:"):
        next(reader)


def test_byte_order_mark_is_no_part_of_the_data(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(GOOD).encode())
    assert answers(read_problems(path)) == ["2"]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_ROWS = st.one_of(
    st.binary(max_size=40),
    _JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"question": _JSON, "answer": _JSON}).map(lambda row: json.dumps(row).encode()),
    st.just(json.dumps(GOOD).encode()),
)


@given(rows=st.lists(_ROWS, max_size=3), preset=st.sampled_from(["auto", *PRESETS]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused_in_one_line(tmp_path: Path, rows: list[bytes], preset: Any) -> None:
    path = tmp_path / "fuzz.jsonl"
    path.write_bytes(b"\n".join(rows))
    refusal = ""
    tasks: list[Task] = []
    try:
        tasks = list(read_problems(path, preset=preset))
    except BadInput as error:
        refusal = str(error)
    assert bool(tasks) != bool(refusal)
    assert all(task.instruction and task.answer for task in tasks)
    assert not refusal or (len(refusal.splitlines()) == 1 and str(path) in refusal)


def _split_of(tasks: Iterable[Task]) -> dict[str, str]:
    return {task.instruction: task.split for task in tasks}


def test_held_out_rows_depend_on_the_question_alone(write: WriteFile) -> None:
    rows = [{"question": f"What is {n} and {n}?", "answer": 2 * n} for n in range(400)]
    before = _split_of(read_problems(write(*rows)))
    assert _split_of(read_problems(write(*reversed(rows)))) == before
    assert 20 <= sum(split == "eval" for split in before.values()) <= 60
    spaced = [{**row, "question": str(row["question"]).replace(" ", "  "), "answer": "5"} for row in rows]
    assert list(_split_of(read_problems(write(*spaced))).values()) == list(before.values())


def test_a_larger_share_keeps_the_rows_of_a_smaller_one(write: WriteFile) -> None:
    path = write(*({"question": f"q{n}", "answer": n} for n in range(200)))
    held_out = [{t.id for t in read_problems(path, eval_share=s) if t.split == "eval"} for s in (0.0, 0.1, 0.5)]
    assert held_out[0] == set()
    assert held_out[1] < held_out[2]


def test_splits_of_the_environment_partition_the_file(write: WriteFile) -> None:
    path = write(*({"question": f"q{n}", "answer": n} for n in range(100)))
    env = MathEnv(MathConfig(data=path))
    train, held_out, everything = ({t.id for t in env.tasks(split)} for split in ("train", "eval", "all"))
    assert train | held_out == everything
    assert not train & held_out
    assert sorted(task.data["line"] for task in env.tasks("all")) == list(range(1, 101))


def test_a_split_without_rows_says_what_to_do(write: WriteFile) -> None:
    env = MathEnv(MathConfig(data=write(GOOD), eval_share=0))
    with pytest.raises(BadInput, match=r"none of 1 problems is in split 'eval': change eval_share"):
        env.tasks("eval")


def test_ids_tell_files_of_one_name_apart(write: WriteFile) -> None:
    first = [task.id for task in read_problems(write(GOOD))]
    assert first == [task.id for task in read_problems(write(GOOD))]
    assert first != [task.id for task in read_problems(write({**GOOD, "answer": "3"}))]
