"""`runner resume DIR`: go on with an interrupted run, with the settings it was started with."""

from __future__ import annotations

from pathlib import Path

import click

from plugym.errors import BadInput
from plugym.store import RunDir
from plugym_runners.cli.options import beside, make_runner, registry_option, use_registry_file
from plugym_runners.cli.output import emit, stdout_to_stderr
from plugym_runners.cli.train import progress
from plugym_runners.evaluation import is_evaluation


@click.command("resume", short_help="go on with an interrupted run")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@registry_option
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
def resume(directory: Path, registry: Path | None, as_json: bool) -> None:
    """Go on with the run in DIR from its last whole checkpoint, to the metrics of an uninterrupted run.

    Settings come from its config.toml alone. A finished run is left as it is. A registry.toml in DIR is used.
    """
    run = RunDir.open(directory)
    if is_evaluation(run):
        raise BadInput(f"{directory} is an evaluation: runner eval --resume {directory}")
    use_registry_file(registry or beside(run.config_path))
    runner = make_runner(run.read_spec())
    with stdout_to_stderr(), progress(quiet=as_json):
        outcome = runner.resume(directory)
    emit(outcome)
