"""The process in which math-verify runs: a script that reads requests from stdin and writes answers to stdout.

What belongs here: nothing but this loop. It is started by path, imports no part of plugym, and is the only place
that imports math-verify. A message is a 4-byte big-endian length and a JSON document:
request {"pairs": [[gold, pred], ...], "cpu_s": seconds, "wall_s": seconds}, answer {"outcome": "equal" |
"different" | "unreadable"}; the first message is {"ready": true} or {"missing": "why there is no math-verify"}.

The deadline is CPU time, so that a busy machine does not change verdicts: SIGPROF ends the process, also in the
middle of one big-number operation. The parent has a wall-clock limit besides; the alarm here only makes sure that a
worker whose parent died does not wait or compute for ever.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import sys
from typing import Any, BinaryIO

MEMORY_LIMIT = 2 << 30
RECURSION_LIMIT = 3_000
# sympy loads and caches a lot at its first use; that must not count against the first answer.
WARM_UP = [
    [r"\frac{\pi}{4}", r"\arctan(1)"],
    [r"2\sin x\cos x", r"\sin 2x"],
    [r"\int_0^1 x dx", r"\frac{1}{2}"],
    [r"\sum_{k=1}^{n} k", r"\frac{n(n+1)}{2}"],
]


def read_message(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(struct.unpack(">I", head)[0])
    message: dict[str, Any] = json.loads(body)
    return message


def write_message(stream: BinaryIO, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def outcome_of(pairs: list[list[str]]) -> str:
    """Whether math-verify finds every prediction equal to its gold answer."""
    from math_verify import LatexExtractionConfig, parse, verify
    from math_verify.errors import TimeoutException  # a BaseException

    try:
        for gold, pred in pairs:
            # Only whole LaTeX counts: the other extractors would pick a number out of a text they cannot read.
            parsed = [
                parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
                for text in (gold, pred)
            ]
            if not all(parsed):
                return "unreadable"
            if not verify(*parsed, timeout_seconds=None):
                return "different"
    except (Exception, TimeoutException):  # whatever a parser throws at hostile text, it is not an answer
        return "unreadable"
    return "equal"


def main() -> None:
    # Libraries print; the protocol keeps the real stdout to itself.
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C belongs to the parent, which closes our stdin
    if sys.platform != "darwin":  # macOS has no limit on address space
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        import math_verify  # noqa: F401  (the slow import happens before "ready")
    except ImportError as problem:
        write_message(answers, {"missing": str(problem)})
        return
    outcome_of(WARM_UP)
    write_message(answers, {"ready": True})
    while (request := read_message(requests)) is not None:
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        signal.setitimer(signal.ITIMER_REAL, 2 * request["wall_s"])
        outcome = outcome_of(request["pairs"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_message(answers, {"outcome": outcome})


if __name__ == "__main__":
    main()
