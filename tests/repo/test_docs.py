"""What the documentation shows works: every Python example of the pages and of the docstrings is run.

The Python blocks of a page run in order and share their names, as a reader would type them; other blocks are
not run.
"""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("sdk", "plugins/envs", "plugins/rewards", "plugins/algos", "runners")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# The architecture page gives signatures for their meaning; they are not programs.
EXAMPLES = {
    str(page.relative_to(ROOT)): blocks
    for page in PAGES
    if page.name != "architecture.md"
    and (blocks := re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE))
}


def _modules_with_examples() -> list[str]:
    """Modules whose docstrings hold examples, by name; found on disk, so that collecting imports nothing."""
    names = []
    for source in SOURCES:
        for path in (ROOT / source).rglob("*.py"):
            if ">>> " in path.read_text():
                parts = path.relative_to(ROOT / source).with_suffix("").parts
                names.append(".".join(parts).removesuffix(".__init__"))
    return sorted(names)


@pytest.mark.parametrize("page", sorted(EXAMPLES))
def test_page_examples_run(page: str) -> None:
    names: dict[str, object] = {"__name__": "example"}
    for block in EXAMPLES[page]:
        exec(compile(block, page, "exec"), names)  # noqa: S102 - our own pages


@pytest.mark.parametrize("name", _modules_with_examples())
def test_docstring_examples_run(name: str) -> None:
    results = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert results.failed == 0
