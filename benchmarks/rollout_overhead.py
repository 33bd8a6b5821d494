"""What playing an episode costs besides the model: CPU of this process per episode, against a server that only waits.

Work: 1000 questions "What is A + B?" at concurrency 256 against a fake server of 50 ms (`fake_server.py`, a process of
its own whose CPU is not counted); `single` is one answer, `tools` four calls of `add` and then the answer. Every answer
is scored. Contenders: plugym (rollout driver, `openai` engine, `verifier` reward), verifiers 0.1.14 (SingleTurnEnv and
ToolEnv), agentbox-rl 0.3.0 (its sandbox replaced by one in memory), and bare aiohttp (the requests and nothing else).
CPU is that of one process from its first request to its last score, after 4 episodes to warm up; peak RSS is that of
the whole process. Floors: 1.5 ms single, 6 ms tools, 120 MB; goals: 0.6 and 3 ms.

    python benchmarks/rollout_overhead.py --peer-python /path/to/peers/bin/python [--episodes 1000] [--ask tokens]
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from common import FOLDER, contend, parser, report

PEERS = {"verifiers": "verifiers", "agentbox": "agentbox"}


@contextmanager
def fake_server(latency: float) -> Iterator[str]:
    """The base URL of a server that lives as long as the block."""
    command = [sys.executable, str(FOLDER / "fake_server.py"), "--latency", str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.terminate()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--episodes", type=int, default=1000)
    options.add_argument("--concurrency", type=int, default=256)
    options.add_argument("--latency", type=float, default=0.05, help="seconds the server takes")
    options.add_argument("--ask", default="text", choices=["text", "logprobs", "tokens"], help="plugym only")
    options.add_argument("--mode", default="both", choices=["single", "tools", "both"])
    chosen = options.parse_args()
    modes = ["single", "tools"] if chosen.mode == "both" else [chosen.mode]
    results: dict[str, Any] = {}
    with fake_server(chosen.latency) as url:
        for mode in modes:
            work = (url, mode, chosen.episodes, chosen.concurrency)
            results[f"aiohttp_{mode}"] = contend(sys.executable, "rollout_aiohttp.py", *work)
            results[f"plugym_{mode}"] = contend(sys.executable, "rollout_plugym.py", *work, chosen.ask)
            for peer, module in PEERS.items():
                results[f"{peer}_{mode}"] = contend(chosen.peer_python, f"rollout_{peer}.py", *work, needs=module)
    settings = {"episodes": chosen.episodes, "concurrency": chosen.concurrency, "latency_s": chosen.latency}
    report("rollout_overhead", results, ask=chosen.ask, **settings)


if __name__ == "__main__":
    main()
