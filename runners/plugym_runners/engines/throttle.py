"""When a request may go: how many at once, how many a minute, and nobody while the server asks for a pause.

The number at once adapts as TCP's window does (additive increase, multiplicative decrease): a server that answers 429
gets half as many requests until it has answered some, so a storm ends instead of eating everybody's retries.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from types import TracebackType


class Throttle:
    """An asynchronous context manager around one try of one request.

    `most` requests at once, `per_minute` starts a minute (None = no limit)."""

    def __init__(self, most: int, per_minute: float | None = None) -> None:
        self._most = most
        self._limit = float(most)
        self._interval = 60.0 / per_minute if per_minute else 0.0
        self._active = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._next_start = 0.0
        self._resume = 0.0
        self._pause = 0.0

    @property
    def limit(self) -> int:
        """Requests that may run at once now."""
        return int(self._limit)

    def succeeded(self) -> None:
        """The server answered: one more at once after each full window."""
        if self._limit < self._most:
            self._limit = min(self._limit + 1.0 / self._limit, float(self._most))

    def refused(self, pause: float) -> None:
        """The server is overrun: nobody sends for `pause` seconds, then half as many as before.

        Those who were under way when the pause began say the same thing once more and change nothing but its length.
        """
        now = time.monotonic()
        if now >= self._resume:
            self._limit = max(self._limit / 2, 1.0)
        self._pause = pause
        self._resume = max(self._resume, now + pause)

    async def __aenter__(self) -> None:
        if self._active < self.limit and not self._queue:
            self._active += 1
        else:
            await self._stand_in_line()
        try:
            await self._wait()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    async def _stand_in_line(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was our turn already: pass it on
                self._leave()
            raise

    def _leave(self) -> None:
        self._active -= 1
        while self._queue and self._active < self.limit:
            turn = self._queue.popleft()
            if not turn.done():
                self._active += 1
                turn.set_result(None)

    async def _wait(self) -> None:
        """Until the pause is over and the rate allows another start."""
        now = time.monotonic()
        while now < self._resume:
            # Spread over half a pause more, so that not everybody comes back in the same instant.
            await asyncio.sleep(self._resume - now + random.uniform(0, self._pause / 2))
            now = time.monotonic()
        if self._interval:
            start = max(self._next_start, now)
            self._next_start = start + self._interval
            if start > now:
                await asyncio.sleep(start - now)
