"""Every command line of `runner` that a page shows in a shell block is run: verbs as they stand, training as a dry run.

A page that writes a plugin of its own (`countdown`, `brief`) shows a command that needs it; here that plugin is not
installed, so the command must say exactly this, and that its other parts are right is seen by the plugin being the
first thing missed.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from plugym_runners.cli.root import run

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
READERS_OWN = ("countdown", "brief")
NEEDS_A_RUN_OR_A_SERVER = ("resume", "report", "view", "diagnose", "eval")


def commands() -> list[tuple[str, str]]:
    """(page, command line) of each line in a ```sh block that starts with runner."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line, comments=True)
                if words and words[0].rpartition("/")[2] == "runner":
                    found.append((str(page.relative_to(ROOT)), shlex.join(words[1:])))
    return found


@pytest.mark.parametrize(("page", "line"), commands())
def test_command_of_a_page(
    page: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line)
    if words[0] in NEEDS_A_RUN_OR_A_SERVER:
        pytest.skip(f"runner {words[0]} is tested with a run of its own")
    shutil.copy(ROOT / "tests/data/math/gsm8k.jsonl", tmp_path / "train.jsonl")
    monkeypatch.chdir(tmp_path)
    if words[0].startswith("--"):
        if "--model" in words:
            words[words.index("--model") + 1] = "tiny"
        words += [] if "--dry-run" in words else ["--dry-run"]
    code = run(words)
    errors = capsys.readouterr().err
    missing = [name for name in READERS_OWN if name in line]
    if missing:
        assert code == 2
        assert re.search(rf"unknown \w+ '{missing[0]}'", errors), errors
    elif "--env maths" in line:  # the page shows what a slip looks like
        assert code == 2
        assert "did you mean 'math'" in errors
    else:
        assert code == 0, errors
