"""What both contenders of grpo_step.py share: the set-up file, the reward, and the clock. Standard library only."""

from __future__ import annotations

import json
import statistics
import sys
import time
import zlib
from pathlib import Path
from typing import Any

GROUP_SIZE = 8
LEARNING_RATE = 1e-5


def setup() -> dict[str, Any]:
    """The one argument: a JSON file with model, prompts and sizes."""
    loaded: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    return loaded


def reward(text: str) -> float:
    """Any text, a number in [0, 1) that looks random and is always the same."""
    return zlib.crc32(text.encode()) % 1000 / 1000


class Clock:
    """CPU seconds of each step, and mean tokens of its completions."""

    def __init__(self) -> None:
        self._last = time.process_time()
        self._seconds: list[float] = []
        self.lengths: list[float] = []

    def tick(self) -> None:
        now = time.process_time()
        self._seconds.append(now - self._last)
        self._last = now

    def report(self) -> None:
        steady, lengths = self._seconds[1:], self.lengths[1:]
        result = {
            "cpu_s_per_step": round(statistics.median(steady), 3),
            "first_step_cpu_s": round(self._seconds[0], 3),
            "mean_completion_tokens": round(statistics.mean(lengths), 1),
        }
        print(json.dumps(result))
