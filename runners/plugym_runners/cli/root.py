"""What a command line means: a verb, or a run; and how every ending becomes one line and an exit code.

0 done, 1 the run failed, 2 bad input, 130 interrupted. A traceback appears with --debug only.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from plugym.errors import PlugymError
from plugym_runners.cli.output import logs_on_stderr

VERBS = {
    "resume": "resume:resume",
    "eval": "evaluate:evaluate",
    "report": "read:report",
    "view": "read:view",
    "diagnose": "read:diagnose",
    "list": "plugins:list_plugins",
    "show": "plugins:show",
    "doctor": "doctor:doctor",
    "grade": "grade:grade",
}
"""Verb to its command, imported when it is used."""


class Verbs(click.Group):
    """The root command: loads a verb when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, name = VERBS[cmd_name].partition(":")
        command = getattr(importlib.import_module(f"plugym_runners.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS:
            close = difflib.get_close_matches(args[0], VERBS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else "."
            ctx.fail(f"unknown verb {args[0]!r}{hint} Verbs: {', '.join(VERBS)}; without one, runner trains")
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage("runner", "--env E --reward R[:weight] --algo A --model M [OPTIONS]")
        formatter.write_usage("runner", "VERB [OPTIONS]")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("More help"):
            formatter.write_dl(
                [
                    ("runner --env E --help", "the options of a run and of the plugins it names"),
                    ("runner VERB --help", "the options of a verb"),
                ]
            )


@click.command("runner", cls=Verbs, context_settings={"help_option_names": ["--help"]})
def root() -> None:
    """Fine-tune language models with environments, rewards and algorithms that are plugins. Without a verb: train."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit with its code."""
    args = list(sys.argv[1:] if args is None else args)
    with logs_on_stderr():
        code = run(args)
    sys.exit(code)


def run(args: list[str]) -> int:
    """Run a command line; returns the exit code, with every error reported."""
    debug = "--debug" in args
    if not args or args == ["-h"]:
        args = ["--help"]
    try:
        with _command(args).make_context("runner", args) as context:
            context.command.invoke(context)
    except click.exceptions.Exit as exit:
        return exit.exit_code
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        return 130
    except BrokenPipeError:  # the reader of our output has gone; the interpreter must not fail on its last flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except Exception as error:
        return _report(error, debug=debug)
    return 0


def _command(args: list[str]) -> click.Command:
    from plugym_runners.cli.train import train

    is_run = args[0].startswith("-") and args != ["--help"]
    return train if is_run else root


def _report(error: Exception, *, debug: bool) -> int:
    if debug:
        traceback.print_exception(error)
    if isinstance(error, click.ClickException):
        message, code = error.format_message(), error.exit_code
    elif isinstance(error, PlugymError):
        message, code = str(error), error.exit_code
    else:
        message, code = f"{type(error).__name__}: {error}; run again with --debug for the traceback", 1
    kind = "error" if isinstance(error, click.ClickException | PlugymError) else "internal error"
    click.echo(f"{kind}: {' '.join(message.split())}", err=True)
    return code
