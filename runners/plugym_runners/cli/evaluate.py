"""`runner eval`: how many tasks a policy solves, with error bars. It resumes, and scores stored episodes again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import click

from plugym.errors import BadInput
from plugym.registry import registry
from plugym_runners.cli.options import FREE, Source, beside, composing, use_registry_file
from plugym_runners.cli.output import emit, stdout_to_stderr, table
from plugym_runners.estimates import Estimate
from plugym_runners.evaluation import Progress, Report, rescore, resume_evaluation, run_evaluation
from plugym_runners.policies import POLICIES, PolicyName

EVERY = 5.0
"""Seconds between two lines of progress."""


@click.command("eval", short_help="how many tasks a policy solves", context_settings=FREE)
@composing
@click.option("--policy", type=click.Choice(list(POLICIES)), default="model", help="who plays [default model]")
@click.option("--n-tasks", type=click.IntRange(1), metavar="N", help="at most this many tasks (--eval.n_tasks)")
@click.option("--n", "samples", type=click.IntRange(1), metavar="K", help="episodes per task (--eval.n)")
@click.option("--resume", type=click.Path(path_type=Path), metavar="DIR", help="go on with an evaluation")
@click.option(
    "--rescore", "stored", type=click.Path(path_type=Path), metavar="DIR", help="score stored episodes, play nothing"
)
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
@click.pass_context
def evaluate(
    context: click.Context,
    source: Source,
    policy: PolicyName,
    n_tasks: int | None,
    samples: int | None,
    resume: Path | None,
    stored: Path | None,
    as_json: bool,
) -> None:
    """Play held-out tasks (--env, --reward, --model, --eval.OPTION) and report avg@n, pass@k and maj@n.

    --model takes what training takes, and also a run directory or one of its checkpoints. No --algo is needed.
    """
    given = context.get_parameter_source("policy") is not click.core.ParameterSource.DEFAULT
    own = {"--policy": given, "--n-tasks": n_tasks is not None, "--n": samples is not None}
    progress = _progress(quiet=as_json)
    if resume is not None:
        _alone("--resume", {**own, "--rescore": stored is not None, "other settings": source.given})
        use_registry_file(source.registry or beside(resume / "config.toml"))
        with stdout_to_stderr():
            report = resume_evaluation(resume, progress)
    elif stored is not None:
        _alone("--rescore", {**own, "--config and --recipe": bool(source.config or source.recipe)})
        config = stored / "config.toml"
        layers = Source(source.flags, None, config, source.registry).layers()
        with stdout_to_stderr():
            report = rescore(stored, layers.spec(), progress)
    else:
        layers = source.layers()
        chosen = {"n_tasks": n_tasks, "n": samples}
        layers.add({"eval": {key: value for key, value in chosen.items() if value is not None}}, "flag")
        if "algo" not in layers.merged:
            layers.add({"algo": "none"}, "evaluation")  # a spec names one; nothing looks at it here
        spec = layers.spec()
        for kind, name in (("envs", spec.env.name), ("engines", spec.engine.name)):
            registry().find(kind, name)
        with stdout_to_stderr():
            report = run_evaluation(spec, policy, progress)
    if as_json:
        emit(report.to_json())
    else:
        show(report)


def _alone(option: str, others: Mapping[str, bool]) -> None:
    """Refuse options that would change what `option` takes over from an earlier evaluation."""
    clash = [name for name, given in others.items() if given]
    if clash:
        raise BadInput(f"{option} keeps the settings of that evaluation: leave out {', '.join(clash)}")


def _progress(*, quiet: bool) -> Progress:
    """A line on stderr now and then."""
    since = time.monotonic()
    right: list[float] = []

    def progress(done: int, total: int, share: float | None) -> None:
        nonlocal since
        if share is not None:
            right.append(share)
        if quiet or (time.monotonic() - since < EVERY and done < total):
            return
        since = time.monotonic()
        so_far = f"  avg {sum(right) / len(right):.3f}" if right else ""
        click.echo(f"{done}/{total} tasks{so_far}", err=True)

    return progress


def show(report: Report) -> None:
    """The report for people."""
    summary = report.summary
    who = report.spec.model if report.policy == "model" else report.policy
    click.echo(
        f"{who} on {report.spec.env.name}, split {report.spec.eval.split}: {summary.tasks} tasks x {summary.n}, "
        f"in {report.dir}"
    )
    rows = [(f"avg@{summary.n}", _written(summary.avg))]
    rows += [(f"pass@{k}", _written(found)) for k, found in summary.passes.items() if k > 1]
    if summary.n > 1:
        rows.append((f"maj@{summary.n}", _written(summary.maj)))
    rows += [("unscored", str(summary.unscored)), ("infra", _counts(summary.infra)), ("stop", _counts(summary.stops))]
    if summary.paths:
        rows.append(("decided by", _counts(summary.paths)))
    if summary.response_mean is not None:
        rows.append(("tokens per episode", f"{summary.response_mean:.1f}"))
    table(rows)
    for heading, found in (("difficulty", summary.levels), ("source", summary.sources)):
        if found:
            click.echo()
            table([(heading, "tasks", f"avg@{summary.n}")] + [(k, str(e.tasks), str(e)) for k, e in found.items()])


def _written(found: Estimate | None) -> str:
    return "-" if found is None else f"{found}  over {found.tasks} tasks"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "0"
