"""`runner grade`: ask a checker about answers, without an environment and without a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from plugym.errors import BadInput
from plugym.registry import registry as installed
from plugym.registry import validate_settings
from plugym_runners.cli.options import FREE, read_flags, registry_option, use_registry_file
from plugym_runners.cli.output import emit, stdout_to_stderr, table

if TYPE_CHECKING:
    from plugym.checker import Checker
    from plugym.reward import Score


@dataclass(frozen=True, slots=True)
class Case:
    """One answer to grade."""

    gold: str
    pred: str


@click.command("grade", short_help="ask a checker about answers", context_settings=FREE)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[--check.OPTION VALUE]...")
@click.option("--check", required=True, metavar="NAME", help="the checker; its settings are --check.OPTION VALUE")
@click.option("--gold", metavar="G", help="the reference answer")
@click.option("--pred", metavar="P", help="the answer, or the whole text that holds it")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help='JSON lines with "gold" and "pred"')
@registry_option
@click.option("--json", "as_json", is_flag=True, help='{"verdicts": [{"correct": ...}, ...]} on stdout')
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
def grade(
    flags: tuple[str, ...],
    check: str,
    gold: str | None,
    pred: str | None,
    file: Path | None,
    registry: Path | None,
    as_json: bool,
) -> None:
    """Grade one answer (--gold, --pred) or a file of them."""
    use_registry_file(registry)
    cases = cases_of(gold, pred, file)
    with stdout_to_stderr():
        checker = make_checker(check, flags)
        scores = asyncio.run(grade_all(checker, cases))
    if as_json:
        emit({"verdicts": [_verdict(case, score) for case, score in zip(cases, scores, strict=True)]})
        return
    words = {True: "correct", False: "wrong", None: "unscored"}
    table(
        [
            (words[score.correct], f"gold {case.gold!r}", f"pred {case.pred!r}", score.why)
            for case, score in zip(cases, scores, strict=True)
        ]
    )


def cases_of(gold: str | None, pred: str | None, file: Path | None) -> list[Case]:
    """The cases of the command line or of the file; exactly one of the two may be given."""
    if file is not None and gold is None and pred is None:
        return read_cases(file)
    if file is None and gold is not None and pred is not None:
        return [Case(gold, pred)]
    raise BadInput("give both --gold and --pred, or --file alone")


def read_cases(file: Path) -> list[Case]:
    """Cases of a JSON-lines file. Raises `BadInput` naming the line that cannot be used."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"cannot read {file}: {error}") from error
    cases = [_case(line, f"{file}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not cases:
        raise BadInput(f'{file} has no cases: each line is {{"gold": ..., "pred": ...}}')
    return cases


def _case(line: str, where: str) -> Case:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadInput(f'{where}: expected an object with "gold" and "pred"')
    return Case(_answer(row, "gold", where), _answer(row, "pred", where))


def _answer(row: dict[str, Any], column: str, where: str) -> str:
    if column not in row:
        raise BadInput(f"{where}: no column {column!r}; it has {', '.join(sorted(row)) or 'none'}")
    value = row[column]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{where}: {column!r} must be text or a number, got {json.dumps(value)}")
    return str(value)


def make_checker(name: str, flags: tuple[str, ...]) -> Checker:
    """The checker with its settings. Raises `BadInput`."""
    settings: dict[str, str] = {}
    for key, value in read_flags(flags):
        section, _, option = key.partition(".")
        if section != "check" or not option:
            raise BadInput(
                f"unknown option --{key}. Valid options: --check, --check.OPTION, --gold, --pred, --file, --json"
            )
        settings[option] = value
    cls = installed().load("checkers", name)
    checker: Checker = cls(validate_settings(cls.Config, settings, prefix="--check.", owner=f"checker {name!r}"))
    return checker


async def grade_all(checker: Checker, cases: Sequence[Case]) -> list[Score]:
    """One score per case, in order."""
    try:
        return list(await asyncio.gather(*(_grade_one(checker, case, f"case-{i}") for i, case in enumerate(cases, 1))))
    finally:
        await checker.close()


async def _grade_one(checker: Checker, case: Case, name: str) -> Score:
    from plugym.message import Action
    from plugym.task import Task
    from plugym.trajectory import Trajectory, Turn

    task = Task(name, answer=case.gold)
    turn = Turn(messages=(), action=Action.of(case.pred))
    return await checker.check(task, Trajectory(name, task, name, turns=(turn,)))


def _verdict(case: Case, score: Score) -> dict[str, Any]:
    return {"correct": score.correct, "value": score.value, "gold": case.gold, "pred": case.pred, "why": score.why}
