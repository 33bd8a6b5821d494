"""From requests that arrive one by one to batches: who is waited for, who travels with whom, and in which order.

All state lives on the event loop; the work itself happens in one worker thread. What the work is, is not known here.

In lockstep, announced sessions form rounds: a round starts when each of them has a request waiting, so a batch depends
on who is playing and never on who came first. Everybody else (a judge, say) waits for a short gathering window. The two
never share a batch and take turns, so neither can hold up the other for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Payload = TypeVar("Payload")
Result = TypeVar("Result")
T = TypeVar("T")

WINDOW = 0.005
"""Seconds that unannounced requests wait for company."""


class Job(Generic[Payload, Result]):
    """One request. `order` decides its place among others, `kind` who it may share a batch with, `rows` its size."""

    def __init__(self, payload: Payload, *, session: str, order: tuple[int | str | bytes, ...], rows: int) -> None:
        self.payload = payload
        self.session = session
        self.order = order
        self.rows = rows
        self.kind: Hashable = type(payload)
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Result] = self.loop.create_future()

    def resolve(self, result: Result) -> None:
        """Hand the result to whoever waits. For the worker thread."""
        self.loop.call_soon_threadsafe(self._set, result)

    def _set(self, result: Result) -> None:
        if not self.future.done():
            self.future.set_result(result)


class Batcher(Generic[Payload, Result]):
    """Calls `work(jobs)` in the worker thread with batches of at most `max_rows`; it must resolve every job.

    What `work` raises reaches the callers of the jobs it left unresolved.
    """

    def __init__(
        self, work: Callable[[Sequence[Job[Payload, Result]]], None], *, max_rows: int, lockstep: bool
    ) -> None:
        self._work = work
        self._max_rows = max_rows
        self._lockstep = lockstep
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="plugym-engine")
        self._playing: set[str] = set()
        self._missing: set[str] = set()  # those of `_playing` that have no request waiting
        self._round: list[Job[Payload, Result]] = []
        self._others: list[Job[Payload, Result]] = []
        self._window: asyncio.TimerHandle | None = None
        self._round_is_next = True
        self._running = 0
        self._closed = False

    async def submit(self, job: Job[Payload, Result]) -> Result:
        """Wait for the job's result. Cancelling the wait takes its session out of the lockstep."""
        if self._closed:
            raise RuntimeError("the engine is closed")
        if job.session in self._playing:
            self._round.append(job)
            self._missing.discard(job.session)
        else:
            self._others.append(job)
            if self._window is None:
                self._window = job.loop.call_later(WINDOW, self._close_window)
        self._start()
        try:
            return await job.future
        except asyncio.CancelledError:
            self._withdraw(job)
            raise

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` in the worker thread, after everything handed to it so far."""
        return await asyncio.get_running_loop().run_in_executor(self._worker, function)

    def post(self, function: Callable[[], None]) -> None:
        """Like `call`, without waiting for it."""
        if not self._closed:
            self._worker.submit(function)

    def announce(self, sessions: Sequence[str]) -> None:
        """From now on a round waits for these sessions, too."""
        if self._lockstep:
            waiting = {job.session for job in self._round}
            self._playing.update(sessions)
            self._missing.update(set(sessions) - waiting)

    def end(self, session: str) -> None:
        """Nobody waits for this session any more."""
        self._playing.discard(session)
        self._missing.discard(session)
        self._start()

    async def close(self) -> None:
        """Let the current batches finish, refuse the rest. Idempotent."""
        self._closed = True
        if self._window is not None:
            self._window.cancel()
        for job in (*self._round, *self._others):
            if not job.future.done():
                job.future.set_exception(RuntimeError("the engine was closed"))
        self._round, self._others = [], []
        await asyncio.to_thread(self._worker.shutdown)

    def _withdraw(self, job: Job[Payload, Result]) -> None:
        for waiting in (self._round, self._others):
            if job in waiting:
                waiting.remove(job)
        self.end(job.session)

    def _close_window(self) -> None:
        self._window = None
        self._start()

    def _start(self) -> None:
        """Hand the next round to the worker, if it is idle and somebody is complete."""
        if self._running or self._closed:
            return
        round_ready = bool(self._round) and not self._missing
        others_ready = bool(self._others) and (
            self._window is None or sum(job.rows for job in self._others) >= self._max_rows
        )
        if round_ready and (self._round_is_next or not others_ready):
            jobs, self._round = self._round, []
            self._missing = set(self._playing)
        elif others_ready:
            jobs, self._others = self._others, []
        else:
            return
        self._round_is_next = jobs[0].session not in self._playing
        batches = self._batches(jobs)
        self._running = len(batches)
        for batch in batches:
            self._worker.submit(self._work, batch).add_done_callback(_Settle(self._settle, batch))

    def _batches(self, jobs: Sequence[Job[Payload, Result]]) -> list[list[Job[Payload, Result]]]:
        """Jobs of one kind, in their order, at most `max_rows` together."""
        batches: list[list[Job[Payload, Result]]] = []
        for kind in dict.fromkeys(job.kind for job in sorted(jobs, key=lambda job: job.order)):
            rows = self._max_rows
            for job in sorted((job for job in jobs if job.kind == kind), key=lambda job: job.order):
                if rows + job.rows > self._max_rows:
                    batches.append([])
                    rows = 0
                batches[-1].append(job)
                rows += job.rows
        return batches

    def _settle(self, batch: Sequence[Job[Payload, Result]], error: BaseException | None) -> None:
        """A batch is through: whoever got no result gets the error."""
        self._running -= 1
        for job in batch:
            if not job.future.done():
                job.future.set_exception(error or RuntimeError("the engine gave no completion"))
        self._start()


class _Settle(Generic[Payload, Result]):
    """Carries the end of a batch from the worker thread back to the event loop."""

    def __init__(
        self,
        settle: Callable[[Sequence[Job[Payload, Result]], BaseException | None], None],
        batch: Sequence[Job[Payload, Result]],
    ) -> None:
        self._settle = settle
        self._batch = batch

    def __call__(self, future: Future[None]) -> None:
        self._batch[0].loop.call_soon_threadsafe(self._settle, self._batch, future.exception())
