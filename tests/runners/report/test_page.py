"""What is on the page: everything that fits, counted where it does not; and nothing that a model wrote is markup."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_runs import HOSTILE, STEPS, metrics, scored, task, write_groups  # type: ignore[import-not-found]

from plugym.errors import BadInput
from plugym.message import Action
from plugym.store import RunDir
from plugym.trajectory import Group, ScoredGroup, Trajectory, Turn
from plugym_runners.report import write_report
from plugym_runners.report.collect import BUDGET, MAX_FILES, collect
from plugym_runners.report.decode import Vocabulary
from plugym_runners.report.episodes import MAX_TEXT, MAX_TOKENS, Packer, advantages_of
from plugym_runners.report.html import inert_json, render

Parse = Callable[[str], dict[str, Any]]


class Elements(HTMLParser):
    """The elements of a page as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else_and_holds_no_foreign_element(run: RunDir) -> None:
    page = write_report(run).read_text(encoding="utf-8")
    elements = Elements(page).found
    assert [attributes for tag, attributes in elements if tag == "script"] == [
        {"type": "application/json", "id": "data"},
        {},
    ]
    assert not [e for e in elements if e[0] in ("img", "link", "iframe", "object", "base")]
    assert not [name for _, attributes in elements for name in attributes if name in ("src", "href", "style")]
    assert "default-src 'none'; script-src 'sha256-" in page
    assert "innerHTML" not in page


def test_everything_of_a_small_run_is_on_the_page(run: RunDir, document_of: Parse) -> None:
    document = document_of(write_report(run).read_text(encoding="utf-8"))
    assert len(document["episodes"]) == 30
    assert document["notes"] == []
    assert document["metrics"]["step"] == [float(step) for step in range(1, STEPS + 1)]
    assert document["metrics"]["actor/grad_norm"][6] is None
    assert document["evals"]["eval/avg@k"] == [0.0, 1.0]
    first = document["episodes"][0]
    assert document["texts"][first["messages"][0]["text"]] == f"7 + 8 = ? {HOSTILE}"
    assert document["texts"][first["messages"][1]["reasoning"]] == f"think {HOSTILE}"
    assert [m["role"] for m in first["messages"]] == ["user", "assistant", "tool", "assistant"]
    runs = first["streams"][0]["runs"]
    assert [r.get("n", len(r.get("ids", []))) for r in runs] == [3, 6, 2, 6]
    assert [document["vocabulary"][str(token)].strip() for token in runs[1]["ids"][:3]] == ["The", "answer", "is"]
    assert {f["name"]: f["status"] for f in document["findings"]}["truncation"] == "fail"


def test_a_page_of_fifty_steps_stays_below_five_megabytes(empty_run: RunDir, document_of: Parse) -> None:
    for step in range(1, 51):
        empty_run.append_metrics(step, metrics(step))
    write_groups(empty_run, 1, "step", [scored(f"g{n}", task(n), [0.0, 1.0] * 4, tokens=300) for n in range(2)])
    first = empty_run.group_files()[0]
    for step in range(2, 51):
        os.link(first, first.with_name(f"step-{step:06d}.jsonl.gz"))
    page = write_report(empty_run).read_text(encoding="utf-8")
    document = document_of(page)
    shown = [source["shown"] for source in document["sources"]]
    assert BUDGET * 0.9 < len(page) < 5_000_000
    assert min(shown) >= 8, "every step has whole groups"
    assert document["notes"] == [f"{50 * 16 - sum(shown)} of 800 episodes are left out to keep this page small"]


def test_of_a_long_run_a_spread_of_the_files_is_read(empty_run: RunDir) -> None:
    for step in range(1, 201):
        write_groups(empty_run, step, "step", [])
    document = collect(empty_run)
    steps = [source["step"] for source in document["sources"]]
    assert len(steps) == MAX_FILES
    assert (steps[0], steps[-1]) == (1, 200)
    assert max(b - a for a, b in pairwise(steps)) <= 5
    assert document["notes"] == ["150 of 200 trajectory files are not read: those shown are spread over the run"]


def test_without_a_budget_every_episode_is_counted_as_left_out(run: RunDir) -> None:
    document = collect(run, budget=0)
    assert document["episodes"] == []
    assert document["notes"] == ["30 of 30 episodes are left out to keep this page small"]


def test_a_broken_file_and_a_cut_line_are_said(run: RunDir) -> None:
    path = run.group_files()[-1]
    path.write_bytes(path.read_bytes()[:-20])
    with run.metrics_path.open("a") as file:
        file.write('{"step": 31, "rew')
    document = collect(run)
    assert len(document["episodes"]) >= 22
    assert any(str(path) in note for note in document["notes"])
    assert any("the last line is cut" in note for note in document["notes"])
    assert len(document["metrics"]["step"]) == STEPS


def test_a_run_that_has_just_started_has_a_page(empty_run: RunDir) -> None:
    document = collect(empty_run)
    assert (document["episodes"], document["metrics"], document["sources"]) == ([], {}, [])
    assert {f["status"] for f in document["findings"]} == {"skip"}
    assert "no checkpoint" in document["decoding"]


def test_without_a_usable_tokenizer_ids_are_shown_and_the_reason(run: RunDir) -> None:
    checkpoint = run.latest_checkpoint()
    assert checkpoint is not None
    (checkpoint / "tokenizer.json").write_text("{")
    document = collect(run)
    assert document["vocabulary"] == {}
    assert document["decoding"].startswith("Token ids: checkpoints/step-000030/tokenizer.json cannot be used")
    assert document["episodes"][0]["streams"][0]["runs"][0] == {"n": 3, "text": None}


def test_bad_metrics_are_bad_input(run: RunDir) -> None:
    run.metrics_path.write_text("not json\n{}\n")
    with pytest.raises(BadInput, match=r"metrics.jsonl:1"):
        write_report(run)


def test_advantages_leave_failures_out() -> None:
    group = scored("g", task(1), [1.0, None, 0.0])
    assert advantages_of(group) == {0: 0.707, 2: -0.707}
    assert advantages_of(scored("g", task(1), [1.0])) == {}
    assert set(advantages_of(scored("g", task(1), [0.5, 0.5])).values()) == {0.0}


def test_what_is_cut_is_counted() -> None:
    packer = Packer(Vocabulary(None, "none"))
    group = scored("g", task(1), [1.0], tokens=MAX_TOKENS - 10)
    runs = packer.group(group, 0)[0]["streams"][0]["runs"]
    assert [r["cut"] for r in runs if "ids" in r] == [0, MAX_TOKENS - 20]
    long = "x" * (MAX_TEXT + 77)
    assert "[... 77 characters left out ...]" in packer.texts[packer.text(long)]


def test_equal_texts_are_stored_once() -> None:
    turn = Turn((), Action.of("same answer"))
    trajectories = tuple(Trajectory(str(i), None, "g", (turn,)) for i in range(3))
    packer = Packer(Vocabulary(None, "none"))
    group = scored("g", task(1), [1.0, 1.0, 1.0])
    packer.group(ScoredGroup(Group("g", None, trajectories), group.scores), 0)
    assert packer.texts.count("same answer") == 1


@given(st.text(alphabet=st.characters(codec=None)))
def test_no_text_can_end_the_data(text: str) -> None:
    data = inert_json({"text": text})
    assert json.loads(data) == {"text": text}
    assert not re.search(r"[<>&\u2028\u2029]", data)


def test_a_hostile_name_is_text_in_the_title() -> None:
    document = {"run": "</title><script>alert(1)</script>"}
    assert "<title>&lt;/title&gt;&lt;script&gt;" in render(document)
