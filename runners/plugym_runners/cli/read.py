"""`runner report DIR`, `runner view DIR`, `runner diagnose DIR`: look at what a run left behind.

None of them changes the run, except that `report.html` is written into it.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from plugym.store import RunDir
from plugym_runners.cli.output import emit, table, warn

if TYPE_CHECKING:
    from plugym_runners.diagnose import Diagnosis

directory = click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
json_option = click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
debug_option = click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")


@click.command("report", short_help="write report.html: curves, findings, episodes")
@directory
@json_option
@debug_option
def report(directory: Path, as_json: bool) -> None:
    """Write DIR/report.html: one page that needs nothing else, also while the run goes on."""
    from plugym_runners.report import write_report

    path = write_report(RunDir.open(directory))
    if as_json:
        emit({"report": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(path)


@click.command("view", short_help="serve the report of a run on this machine")
@directory
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="port on 127.0.0.1 [default: a free one]")
@debug_option
def view(directory: Path, port: int) -> None:
    """Serve the report of DIR on 127.0.0.1 until Ctrl-C. Only who knows the printed URL can read it."""
    from plugym_runners.report.serve import serve

    run = RunDir.open(directory)
    try:
        asyncio.run(serve(run, port, lambda url: click.echo(url)))
    except KeyboardInterrupt:  # the way this verb ends, not an interruption of it
        click.echo("stopped", err=True)


@click.command("diagnose", short_help="what is wrong with a run, and what to change")
@directory
@json_option
@debug_option
@click.pass_context
def diagnose(context: click.Context, directory: Path, as_json: bool) -> None:
    """Judge the numbers of the run in DIR. The exit code is 1 when a check fails."""
    from plugym_runners.diagnose.run import diagnose_run

    run = RunDir.open(directory)
    for log in (run.read_metrics(), run.read_evals()):
        if log.warning:
            warn(log.warning)
    findings = diagnose_run(run)
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        emit({"ok": not failed, "findings": [asdict(finding) for finding in findings]})
    else:
        table([(finding.status, finding.name, _line(finding)) for finding in findings])
    context.exit(int(failed))


def _line(finding: Diagnosis) -> str:
    return f"{finding.detail}; {finding.advice}" if finding.advice else finding.detail
