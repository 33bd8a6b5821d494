"""The computer algebra behind the grader, in processes that can be killed.

What belongs here: `AlgebraPool`, which starts `algebra_worker.py`, hands pairs of expressions to it and replaces it
when it took too long. sympy can hold the interpreter lock for minutes inside one big-number operation, so neither a
thread nor a handled signal can stop it reliably: only the end of its process does. The worker is a fresh interpreter
(subprocess, never a fork of this possibly threaded process) and speaks length-prefixed JSON over pipes.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeAlias

INHERITED = ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONHOME", "PYTHONPATH")
"""What a worker sees of the environment: it reads what models wrote, so no key or token may be within its reach."""

WORKER = Path(__file__).with_name("algebra_worker.py")
START_TIMEOUT_S = 60.0
TIMEOUT_S = 1.5  # CPU seconds of the worker
WALL_FACTOR = 4  # wall-clock limit as a multiple of it, for a machine that is busy
MAX_MESSAGE = 1 << 20

Outcome: TypeAlias = Literal["equal", "different", "unreadable", "timeout"]
Pair: TypeAlias = tuple[str, str]


class AlgebraUnavailable(RuntimeError):
    """The algebra worker cannot run here: math-verify is missing, or the process does not start."""


class _Died(Exception):
    """The worker ended without an answer."""


class _TooSlow(Exception):
    """The deadline passed."""


class _Worker:
    """One process and its two pipes. Used by one thread at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={name: os.environ[name] for name in INHERITED if name in os.environ},
        )
        self.was_ready = False
        self.ended = False

    def wait_until_ready(self) -> None:
        """Wait for the import of math-verify; raises AlgebraUnavailable where there is none."""
        if self.was_ready:
            return
        try:
            greeting = self._receive(time.monotonic() + START_TIMEOUT_S)
        except (_Died, _TooSlow) as problem:
            self.kill()
            raise AlgebraUnavailable("the algebra worker did not start") from problem
        if "missing" in greeting:
            self.kill()
            raise AlgebraUnavailable(
                f"grading mathematics needs math-verify: pip install 'plugym[math]' ({greeting['missing']})"
            )
        self.was_ready = True

    def ask(self, pairs: Sequence[Pair], timeout_s: float) -> Outcome:
        """Raises _TooSlow or _Died."""
        wall_s = WALL_FACTOR * timeout_s
        body = json.dumps({"pairs": pairs, "cpu_s": timeout_s, "wall_s": wall_s}).encode()
        deadline = time.monotonic() + wall_s
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(struct.pack(">I", len(body)) + body)
        except BrokenPipeError as problem:
            raise _Died from problem
        outcome: Outcome = self._receive(deadline)["outcome"]
        return outcome

    def end(self) -> None:
        """Send the process its end, from any thread."""
        self.ended = True
        self._process.kill()

    def kill(self) -> None:
        """End the process, wait for it and close the pipes; safe to call twice."""
        self.end()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _receive(self, deadline: float) -> dict[str, Any]:
        (size,) = struct.unpack(">I", self._read(4, deadline))
        if size > MAX_MESSAGE:
            raise _Died
        message: dict[str, Any] = json.loads(self._read(size, deadline))
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, data = self._process.stdout.fileno(), b""
        poll = select.poll()  # select() itself fails for descriptors above 1023
        poll.register(descriptor, select.POLLIN)
        while len(data) < size:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise _TooSlow
            chunk = os.read(descriptor, size - len(data))
            if not chunk:
                self.kill()
                raise _TooSlow if self._process.returncode == -signal.SIGPROF else _Died
            data += chunk
        return data


class AlgebraPool:
    """Worker processes around math-verify, started at the first use.

    `submit` may be called from any thread, `asubmit` from any event loop. A worker that passes its deadline is
    killed and replaced at once. The deadline is in CPU seconds of the worker, so neither a queue nor a busy machine
    uses it up; four times as much wall-clock time is the last resort.

    >>> with AlgebraPool() as pool:  # doctest: +SKIP
    ...     pool.submit("\\\\frac{\\\\pi}{4}", "\\\\arctan(1)")
    'equal'
    """

    def __init__(self, workers: int = 1, *, timeout_s: float = TIMEOUT_S) -> None:
        if workers < 1 or timeout_s <= 0:
            raise ValueError("an AlgebraPool needs workers >= 1 and timeout_s > 0")
        self._timeout_s = timeout_s
        self._size = workers
        self._slots = threading.Semaphore(workers)
        self._lock = threading.Lock()  # guards what follows
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def start(self) -> None:
        """Start a worker and wait until it answers; optional, so that the first answer need not wait.

        Raises AlgebraUnavailable.
        """
        with self._slots, self._worker() as worker:
            worker.wait_until_ready()

    def submit(self, gold: str, pred: str, timeout_s: float | None = None) -> Outcome:
        """Whether math-verify finds the LaTeX `pred` equal to the LaTeX `gold`. Blocks for at most `timeout_s` CPU
        seconds of a worker, besides its start and the wait for a free one. Raises AlgebraUnavailable."""
        return self.submit_all([(gold, pred)], timeout_s)

    async def asubmit(self, gold: str, pred: str, timeout_s: float | None = None) -> Outcome:
        """`submit` for an event loop."""
        return await self.asubmit_all([(gold, pred)], timeout_s)

    def submit_all(self, pairs: Sequence[Pair], timeout_s: float | None = None) -> Outcome:
        """`submit` for several pairs within one deadline: "equal" when every pair is."""
        limit = timeout_s or self._timeout_s
        with self._slots:
            for _ in range(2):
                with suppress(_Died), self._worker() as worker:
                    worker.wait_until_ready()
                    try:
                        return worker.ask(pairs, limit)
                    except _TooSlow:
                        worker.kill()
                        return "timeout"
        # Twice, the second time on a fresh process: it is this input (memory limit, stack), not the machine.
        return "unreadable"

    async def asubmit_all(self, pairs: Sequence[Pair], timeout_s: float | None = None) -> Outcome:
        """`submit_all` for an event loop: the wait happens in a thread."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._size, thread_name_prefix="algebra")
            threads = self._threads
        return await asyncio.get_running_loop().run_in_executor(threads, self.submit_all, pairs, timeout_s)

    def close(self) -> None:
        """End all workers; idempotent. Calls in flight raise RuntimeError."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, None
            for worker in self._busy:
                worker.end()  # its own thread sees the end of the pipe and cleans up
        for worker in idle:
            worker.kill()
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> AlgebraPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        """A worker for one request. One that ended or whose request failed is replaced at once, so that the import
        of math-verify happens while nobody waits for it."""
        with self._lock:
            if self._closed:
                raise RuntimeError("this AlgebraPool is closed")
            worker = self._idle.pop() if self._idle else _Worker()
            self._busy.add(worker)
        try:
            yield worker
        except BaseException:
            worker.kill()
            raise
        finally:
            self._give_back(worker)

    def _give_back(self, worker: _Worker) -> None:
        with self._lock:
            self._busy.discard(worker)
            if not self._closed and not worker.ended:
                self._idle.append(worker)
                return
            if not self._closed and worker.was_ready:
                self._idle.append(_Worker())
        worker.kill()
