"""`runner doctor`: what this machine and this installation can do, and with a composition, whether it would run."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import platform
import re
import sys
from collections.abc import Iterator, Sequence

import click

from plugym.errors import BadInput
from plugym.registry import registry
from plugym.runner import Finding
from plugym_runners.cli.options import FREE, Source, composing, make_runner
from plugym_runners.cli.output import report, stdout_to_stderr
from plugym_runners.cli.plugins import problem_of
from plugym_runners.local.models import BUILT_IN, cache_dir, resolve_model

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(?:\[(?P<inner>[^\]]*)\])?[^;]*;.*\bextra\s*==\s*['\"](?P<extra>[\w.-]+)['\"]"
)


@click.command(
    "doctor", short_help="what this machine can do; with a composition, whether it would run", context_settings=FREE
)
@composing
@click.option("--json", "as_json", is_flag=True, help="one JSON document on stdout and nothing else there")
@click.option("--debug", is_flag=True, expose_value=False, help="show tracebacks")
@click.pass_context
def doctor(context: click.Context, source: Source, as_json: bool) -> None:
    """Look at Python, torch, extras, the cache and every plugin; with --env, --reward... also check that run."""
    layers = source.layers()
    with stdout_to_stderr():
        findings = list(machine())
        if source.given:
            findings += make_runner(layers.spec()).dry_run()
    context.exit(report(findings, as_json=as_json))


def machine() -> Iterator[Finding]:
    """Everything that does not depend on a composition."""
    yield Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Finding("platform", "ok", f"{platform.platform()}, {os.cpu_count()} cores")
    yield Finding("plugym", "ok", metadata.version("plugym"))
    yield torch_finding()
    yield extras_finding()
    yield cache_finding()
    yield from model_findings()
    yield from plugin_findings()


def torch_finding() -> Finding:
    """Version, devices, threads, and whether bfloat16 runs on the hardware or is emulated."""
    try:
        import torch
    except ImportError as error:
        return Finding("torch", "warn", f"{error}: nothing can be trained here; pip install 'plugym[local]'")
    if torch.cuda.is_available():
        where = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
        native = torch.cuda.is_bf16_supported()
    else:
        where = f"CPU {torch.backends.cpu.get_cpu_capability()}"
        native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    bf16 = "bfloat16 in hardware" if native else "bfloat16 emulated and slow: use float32"
    return Finding("torch", "ok", f"{torch.__version__} on {where}, {torch.get_num_threads()} threads, {bf16}")


def extras_finding() -> Finding:
    """Which extras of this distribution are complete, by the metadata of what is installed."""
    metadata_of = metadata.metadata("plugym")
    needs = requirements(metadata_of.get_all("Requires-Dist") or [])
    complete: list[str] = []
    partial: list[str] = []
    for extra in sorted(metadata_of.get_all("Provides-Extra") or []):
        missing = sorted(name for name in needs.get(extra, ()) if not installed(name))
        (partial if missing else complete).append(extra)
    detail = f"complete: {', '.join(complete) or 'none'}"
    if partial:
        detail += f"; not installed: {', '.join(partial)} (pip install 'plugym[NAME]')"
    return Finding("extras", "ok", detail)


def requirements(lines: Sequence[str]) -> dict[str, set[str]]:
    """Distributions that each extra needs, those of extras it includes among them.

    >>> requirements(["click>=8", "torch>=2; extra == 'torch'", "plugym[torch]; extra == 'local'"])
    {'torch': {'torch'}, 'local': {'torch'}}
    """
    direct: dict[str, set[str]] = {}
    included: dict[str, set[str]] = {}
    for line in lines:
        match = _REQUIREMENT.match(line)
        if match is None:
            continue
        if match["name"] == "plugym":
            included.setdefault(match["extra"], set()).update(re.split(r"\s*,\s*", match["inner"] or ""))
        else:
            direct.setdefault(match["extra"], set()).add(match["name"])

    def closure(extra: str) -> set[str]:
        return direct.get(extra, set()).union(*(closure(other) for other in included.get(extra, ())))

    return {extra: closure(extra) for extra in (*direct, *included)}


def installed(distribution: str) -> bool:
    """Whether a distribution is there, without importing it."""
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def cache_finding() -> Finding:
    """Whether models can be put where they are kept."""
    folder = cache_dir()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if existing.is_dir() and os.access(existing, os.W_OK):
        return Finding("cache", "ok", str(folder))
    return Finding("cache", "fail", f"{folder} cannot be written: set PLUGYM_CACHE to another directory")


def model_findings() -> Iterator[Finding]:
    """Whether the models that come with the project are there, or can be made without a network."""
    for name in BUILT_IN:
        try:
            found = resolve_model(name)
        except BadInput as error:
            yield Finding(f"model {name}", "warn", str(error))
        else:
            state = "in the cache" if found.ready else "made on first use, without a network"
            yield Finding(f"model {name}", "ok", state)


def plugin_findings() -> Iterator[Finding]:
    """Every plugin is imported; a broken one is a warning, because nobody may want it."""
    plugins = registry().plugins()
    broken = [(info, problem) for info in plugins if (problem := problem_of(info))]
    yield Finding("plugins", "ok", f"{len(plugins) - len(broken)} of {len(plugins)} can be used")
    for info, problem in broken:
        yield Finding(f"{info.kind}/{info.name}", "warn", problem)
