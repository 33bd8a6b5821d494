"""The work of the rollout benchmark and its measure, for every contender alike: standard library only, because each
contender runs in its own venv. `main(play)` reads the command line, plays, and prints the one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

TOOL_TURNS = 4
"""Calls that the fake server makes before it answers."""
WARM_UP = 4
"""Episodes played before the clock starts, so that modules imported at first use are not counted."""


def questions(n: int) -> list[tuple[str, str]]:
    """(question, answer) pairs, all different."""
    return [(f"What is {i} + {i // 3}?", str(i + i // 3)) for i in range(n)]


Play = Callable[[str, bool, int, int], Coroutine[Any, Any, int]]
"""(base url, with tools, episodes, concurrency) to the number of right answers."""


def main(play: Play) -> None:
    """Arguments: URL MODE EPISODES CONCURRENCY."""
    url, mode, episodes, concurrency = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    asyncio.run(play(url, mode == "tools", WARM_UP, WARM_UP))
    wall, cpu = time.perf_counter(), time.process_time()
    right = asyncio.run(play(url, mode == "tools", episodes, concurrency))
    result = {
        "cpu_ms_per_episode": round((time.process_time() - cpu) / episodes * 1000, 3),
        "episodes_per_s": round(episodes / (time.perf_counter() - wall), 1),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "right": right,
    }
    print(json.dumps(result))
