"""The frame of the repository holds together: what pyproject.toml declares, what registry.toml describes and
what an installed copy offers are the same plugins, and importing the SDK stays cheap.

Behaviour of the registry itself is tested in tests/sdk; here only the files of the repository are compared.
"""

import ast
import importlib.util
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CATALOGUE: dict[str, Any] = tomllib.loads((ROOT / "registry.toml").read_text())

# One tuple per declared plugin: kind, name, "module:attribute".
DECLARED = [
    (group.removeprefix("plugym."), name, target)
    for group, targets in PROJECT["entry-points"].items()
    for name, target in targets.items()
]
OWN = {
    (kind, name): entry
    for kind, table in CATALOGUE.items()
    for name, entry in table.items()
    if entry["distribution"] == PROJECT["name"]
}
HEAVY = {"torch", "transformers", "datasets", "pyarrow", "ray", "vllm"}


def _source(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} cannot be found"
    assert spec.origin is not None, f"{module} has no __init__.py"
    return Path(spec.origin)


def _names_defined_in(path: Path) -> set[str]:
    """Top-level names of a file, read without running it."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def test_catalogue_and_entry_points_name_the_same_plugins() -> None:
    assert set(OWN) == {(kind, name) for kind, name, _ in DECLARED}


@pytest.mark.parametrize(("kind", "name"), sorted(OWN))
def test_catalogue_entry_is_complete(kind: str, name: str) -> None:
    entry = OWN[kind, name]
    assert set(entry) == {"distribution", "extra", "summary", "needs", "homepage"}
    assert entry["summary"]
    assert "\n" not in entry["summary"]
    assert entry["extra"] in {"", *PROJECT["optional-dependencies"]}
    assert not entry["needs"] or entry["extra"], "what a plugin needs beyond the core comes by an extra"


@pytest.mark.parametrize(("kind", "name", "target"), sorted(DECLARED))
def test_entry_point_leads_to_a_definition(kind: str, name: str, target: str) -> None:
    module, attribute = target.split(":")
    assert attribute in _names_defined_in(_source(module))


def test_installed_entry_points_are_the_declared_ones() -> None:
    """Fails when pyproject.toml changed after the editable install: `make venv` repeats it."""
    installed = {
        (group.removeprefix("plugym."), point.name, point.value)
        for group in PROJECT["entry-points"]
        for point in entry_points(group=group)
        if point.dist is not None and point.dist.name == PROJECT["name"]
    }
    assert installed == set(DECLARED)


@pytest.mark.parametrize(
    "package",
    [
        "sdk/plugym",
        "plugins/envs/plugym_envs",
        "plugins/rewards/plugym_rewards",
        "plugins/algos/plugym_algos",
        "runners/plugym_runners",
    ],
)
def test_package_is_typed_and_imported_from_the_checkout(package: str) -> None:
    folder = ROOT / package
    assert (folder / "py.typed").is_file()
    assert _source(folder.name) == folder / "__init__.py"


def test_importing_the_sdk_leaves_heavy_packages_out() -> None:
    code = "import sys, plugym; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(run.stdout.split())
