"""What all benchmarks share: a contender in a process of its own, its CPU seconds, and one JSON line at the end.

A contender is a script that prints one JSON object. It runs in the interpreter that has its package; one that is not
there is reported as null with the command that installs it. What is measured, and on what work, is up to the scripts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
INSTALL = "pip install -r benchmarks/requirements.txt (in a venv; name it with --peer-python)"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A command line with the interpreter of the peers."""
    out = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers installed")
    return out


def installed(python: str, module: str) -> bool:
    """Whether that interpreter finds the module; it is not imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", code], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def contend(python: str, script: str, *arguments: object, needs: str | None = None) -> dict[str, Any] | None:
    """What `contenders/<script>` prints, None where its package is missing.

    A contender that fails is reported with the last line of its error: one broken peer does not cost the others.
    """
    if needs is not None and not installed(python, needs):
        return None
    command = [python, str(FOLDER / "contenders" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet_environment())
    if done.returncode != 0:
        return {"error": (done.stderr.strip().splitlines() or ["no message"])[-1][:300]}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


def quiet_environment() -> dict[str, str]:
    """One thread for torch, nothing fetched, no progress bars. Not an answer to what the defaults would do."""
    quiet = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**quiet, **os.environ}


def report(name: str, results: Mapping[str, Any], **settings: object) -> None:
    """The one line on stdout; where a contender is missing, the line says how to get it."""
    line: dict[str, Any] = {"benchmark": name, **settings, **results}
    if any(result is None for result in results.values()):
        line["missing"] = INSTALL
    print(json.dumps(line))
