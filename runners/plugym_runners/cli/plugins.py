"""`runner list` and `runner show NAME`: which plugins there are, and what one of them does."""

from __future__ import annotations

import difflib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from plugym.errors import BadInput, PluginError
from plugym.registry import KINDS, SINGULAR, PluginInfo
from plugym.registry import registry as installed
from plugym_runners.cli.options import registry_option, use_registry_file
from plugym_runners.cli.output import emit, stdout_to_stderr, table, warn
from plugym_runners.cli.settings import config_of, describe


def as_kind(text: str) -> str:
    """A kind of plugin by its name, singular or plural. Raises `BadInput`.

    >>> as_kind("env"), as_kind("algorithm"), as_kind("rewards")
    ('envs', 'algos', 'rewards')
    """
    for kind in KINDS:
        if text in (kind, kind.removesuffix("s"), SINGULAR[kind]):
            return kind
    raise BadInput(f"unknown kind of plugin {text!r}: choose one of {', '.join(KINDS)}")


@click.command("list", short_help="installed plugins")
@click.argument("kind", required=False)
@registry_option
@click.option("--check", is_flag=True, help="import every plugin and mark the broken ones")
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
def list_plugins(kind: str | None, registry: Path | None, check: bool, as_json: bool) -> None:
    """List the installed plugins, of one KIND or all. Nothing is imported without --check."""
    use_registry_file(registry)
    plugins = installed().plugins(as_kind(kind) if kind else None)
    broken = {info: problem for info in plugins if check and (problem := problem_of(info))}
    for problem in broken.values():
        warn(problem)
    if as_json:
        emit({"plugins": [{**_facts(info), **_checked(info, broken, check)} for info in plugins]})
        return
    claims = Counter((info.kind, info.name) for info in plugins)
    rows = [("KIND", "NAME", "FROM", "SUMMARY")]
    for info in plugins:
        notes = [info.summary]
        if claims[info.kind, info.name] > 1:
            notes.append(f"[claimed twice: say {info.name}@{info.dist}]")
        if info in broken:
            notes.append("[broken]")
        rows.append((info.kind, info.name, f"{info.dist} {info.version}".strip(), " ".join(filter(None, notes))))
    table(rows)


def _facts(info: PluginInfo) -> dict[str, str]:
    """What the metadata and the catalogue say of a plugin."""
    return {**asdict(info), "summary": info.summary}


def _checked(info: PluginInfo, broken: dict[PluginInfo, str], check: bool) -> dict[str, Any]:
    return {"broken": broken.get(info)} if check else {}


def problem_of(info: PluginInfo) -> str | None:
    """Why a plugin cannot be used, None when it can. Imports it unless its distribution is denied."""
    try:
        with stdout_to_stderr():
            installed().load(info.kind, f"{info.name}@{info.dist}")
    except PluginError as error:
        return str(error)
    return None


@click.command("show", short_help="what a plugin is, and its settings")
@click.argument("name")
@registry_option
@click.option("--kind", help="where several kinds have a plugin of this name")
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
def show(name: str, registry: Path | None, kind: str | None, as_json: bool) -> None:
    """Show what the plugin NAME is, where it comes from and which settings it has."""
    use_registry_file(registry)
    found = [_details(info) for info in _matches(name, as_kind(kind) if kind else None)]
    if as_json:
        emit({"plugins": found})
        return
    for number, plugin in enumerate(found):
        if number:
            click.echo()
        click.echo(f"{SINGULAR[plugin['kind']]} {plugin['name']}: {plugin['summary'] or 'no summary'}")
        click.echo(f"from {plugin['dist']} {plugin['version']}, {plugin['target']}")
        rows = [(f"  {s['name']}", s["type"], s["summary"]) for s in plugin["settings"]]
        click.echo("settings:" if rows else "no settings")
        if rows:
            table(rows)


def _matches(name: str, kind: str | None) -> list[PluginInfo]:
    """Plugins of that name in every kind, or the error of the one kind that could have had it."""
    bare, _, dist = name.partition("@")
    found = [i for i in installed().plugins(kind) if i.name == bare and (not dist or i.dist == dist)]
    if found:
        return found
    if kind is not None:
        return [installed().find(kind, name)]
    raise BadInput(_unknown(name))


def _unknown(name: str) -> str:
    known = sorted({info.name for info in installed().plugins()})
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "`runner list` shows all"
    return f"unknown plugin {name!r}: {hint}"


def _details(info: PluginInfo) -> dict[str, Any]:
    settings = []
    try:
        with stdout_to_stderr():
            config = config_of(info.kind, f"{info.name}@{info.dist}")
        settings = [{**asdict(s), "summary": s.summary} for s in describe(config)] if config else []
    except PluginError as error:
        warn(str(error))
    return {**_facts(info), "settings": settings}
