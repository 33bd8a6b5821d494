"""`runner` without a verb: compose a run from its layers, then describe it, check it, or train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from plugym.config import Layers, RunSpec, to_layer
from plugym.tomlfile import dump_toml
from plugym_runners.cli.options import FREE, Source, composing, make_runner
from plugym_runners.cli.output import emit, report, stdout_to_stderr
from plugym_runners.cli.settings import plugin_sections, run_sections


@click.command("runner", context_settings=FREE, add_help_option=False)
@composing
@click.option("--dry-run", is_flag=True, help="check the whole composition without training")
@click.option("--print-config", is_flag=True, help="print every setting and where it came from")
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
@click.option("--help", "wants_help", is_flag=True, help="this text, with the options of the chosen plugins")
@click.pass_context
def train(
    context: click.Context, source: Source, dry_run: bool, print_config: bool, as_json: bool, wants_help: bool
) -> None:
    """Train a model in an environment with a reward and an algorithm.

    Every --a.b.c VALUE is a setting. Later layers win: defaults, recipe, run file, PLUGYM_* variables, flags.
    """
    layers = source.layers()
    if wants_help:
        with stdout_to_stderr():
            text = help_text(context, layers)
        click.echo(text)
        return
    with stdout_to_stderr():
        runner = make_runner(layers.spec())
        resolved = runner.resolved()
    if print_config:
        show_config(resolved, layers.origin, as_json=as_json)
    elif dry_run:
        with stdout_to_stderr():
            findings = runner.dry_run()
        context.exit(report(findings, as_json=as_json))
    else:
        with stdout_to_stderr(), progress(quiet=as_json):
            outcome = runner.train()
        emit(outcome)


def show_config(spec: RunSpec, origin: Mapping[str, str], *, as_json: bool) -> None:
    """Print the resolved spec as a run file, the origin of each value behind it."""
    layer = to_layer(spec)
    if as_json:
        origins = {".".join(path): origin.get(".".join(path), "default") for path, _ in _walk(layer)}
        emit({"config": layer, "origin": origins})
        return
    for path, value in _walk(layer):
        key = ".".join(dump_toml({part: 0}).partition(" = ")[0] for part in path)
        text = dump_toml({"value": value}).partition(" = ")[2].rstrip()
        click.echo(f"{key} = {text}  # {origin.get('.'.join(path), 'default')}")


def _walk(layer: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            yield from _walk(value, (*path, key))
        else:
            yield (*path, key), value


def help_text(context: click.Context, layers: Layers) -> str:
    """Usage, and every option of this run and of the plugins it names."""
    formatter = context.make_formatter()
    formatter.write_usage("runner", "--env E --reward R[:weight] --algo A --model M [OPTIONS]")
    context.command.format_help_text(context, formatter)
    options = [
        record
        for parameter in context.command.get_params(context)
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
    ]
    for heading, rows in [("Options", options), *run_sections(), *plugin_sections(layers.merged)]:
        with formatter.section(heading):
            formatter.write_dl(rows)
    return formatter.getvalue().rstrip()


@contextmanager
def progress(*, quiet: bool) -> Iterator[None]:
    """Progress of the body on stderr, or none at all."""
    from plugym_runners.hooks.console import STDERR

    STDERR.quiet = quiet
    try:
        yield
    finally:
        STDERR.quiet = False
