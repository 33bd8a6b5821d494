"""How long `import plugym` takes on top of the library it extends, and how long `runner list` takes.

Peer: gymnasium, which every environment imports anyway. CPU seconds (user and system) of whole interpreters, medians
of 7, the three commands in turn so that a busy machine is busy for all of them. Floors: plugym at most 0.12 s above
gymnasium, `runner list` below 0.7 s.

    python benchmarks/import_time.py
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from common import report

COMMANDS = {
    "gymnasium": [sys.executable, "-c", "import gymnasium"],
    "plugym": [sys.executable, "-c", "import plugym"],
    "runner_list": [sys.executable, "-m", "plugym_runners", "list"],
}
REPEATS = 7


def cpu_seconds(command: list[str]) -> float:
    """Of one command and its children."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: run `make venv` first")
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    for command in COMMANDS.values():  # compiled and in the page cache
        cpu_seconds(command)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(REPEATS):
        for name, command in COMMANDS.items():
            times[name].append(cpu_seconds(command))
    medians = {name: statistics.median(values) for name, values in times.items()}
    above = medians["plugym"] - medians["gymnasium"]
    results = {f"{name}_cpu_s": round(value, 3) for name, value in medians.items()}
    report("import_time", {**results, "plugym_above_gymnasium_s": round(above, 3)}, repeats=REPEATS)


if __name__ == "__main__":
    main()
