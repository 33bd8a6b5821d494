"""What the verbs write: aligned text or one JSON document on stdout, warnings and errors on stderr.

Plugins and native libraries may print as well. While they run, stdout belongs to nobody (`stdout_to_stderr`), so that
a program which reads the answer finds nothing else there.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

import click

from plugym.runner import Finding


def emit(document: Mapping[str, Any]) -> None:
    """Print one JSON document on one line. Numbers without a JSON form are null, unknown objects their text."""
    click.echo(json.dumps(_plain(document), ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if hasattr(value, "item") and not isinstance(value, str | bytes):
        value = value.item()  # a numpy or torch scalar
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    return str(value)


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print columns, each as wide as its widest cell; the last one is left as it is."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def warn(message: str) -> None:
    click.echo(f"warning: {message}", err=True)


def report(findings: Sequence[Finding], *, as_json: bool) -> int:
    """Print findings; the exit code is 1 when one of them is a failure."""
    failed = any(finding.status == "fail" for finding in findings)
    if as_json:
        rows = [{"name": f.name, "status": f.status, "detail": f.detail} for f in findings]
        emit({"ok": not failed, "findings": rows})
    else:
        table([(finding.status, finding.name, finding.detail) for finding in findings])
    return int(failed)


class LogLines(logging.Handler):
    """Log records as lines on the stderr of the moment: the progress bar replaces it while it is drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"{record.levelname.lower()}: {self.format(record)}", err=True)


@contextmanager
def logs_on_stderr() -> Iterator[None]:
    """Show warnings and worse for as long as the body runs."""
    handler = LogLines(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send whatever the body prints to stderr: Python's prints, and where stdout is a file descriptor, native ones."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr), _descriptor_to_stderr():
        yield


@contextmanager
def _descriptor_to_stderr() -> Iterator[None]:
    if sys.__stdout__ is None or sys.__stderr__ is None:
        yield
        return
    sys.__stdout__.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.__stdout__.flush()
        os.dup2(saved, 1)
        os.close(saved)
