"""Who is waited for, who travels with whom, and that nobody can wedge the engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence

import pytest

from plugym_runners.local.batching import Batcher, Job

IntJob = Job[int, int]


class Worker:
    """Doubles its payloads and remembers the batches; `gate` holds it up."""

    def __init__(self, *, max_rows: int = 8, lockstep: bool = True) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.batcher: Batcher[int, int] = Batcher(self.work, max_rows=max_rows, lockstep=lockstep)

    def work(self, jobs: Sequence[IntJob]) -> None:
        assert self.gate.wait(10)
        self.batches.append([job.payload for job in jobs])
        for job in jobs:
            if job.payload < 0:
                raise ArithmeticError("negative")
            job.resolve(2 * job.payload)

    def ask(self, payload: int, session: str, rows: int = 1) -> asyncio.Task[int]:
        job: IntJob = Job(payload, session=session, order=(payload,), rows=rows)
        return asyncio.get_running_loop().create_task(self.batcher.submit(job))


def scene(play: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(play(), 20))


def test_a_round_waits_for_everybody_and_ignores_the_order_of_arrival() -> None:
    async def play() -> None:
        worker = Worker(max_rows=2)
        worker.batcher.announce(["a", "b", "c"])
        late = [worker.ask(3, "c"), worker.ask(1, "a")]
        await asyncio.sleep(0.05)
        assert worker.batches == []
        assert await asyncio.gather(*late, worker.ask(2, "b")) == [6, 2, 4]
        assert worker.batches == [[1, 2], [3]]
        await worker.batcher.close()

    scene(play)


def test_a_session_that_ends_or_gives_up_is_no_longer_waited_for() -> None:
    async def play() -> None:
        worker = Worker()
        worker.batcher.announce(["a", "b", "c"])
        a, b = worker.ask(1, "a"), worker.ask(2, "b")
        await asyncio.sleep(0)
        worker.batcher.end("c")
        assert await asyncio.gather(a, b) == [2, 4]
        waiting, gone = worker.ask(3, "a"), worker.ask(4, "b")
        worker.batcher.announce(["d"])
        await asyncio.sleep(0)
        gone.cancel()
        assert await asyncio.gather(waiting, worker.ask(5, "d")) == [6, 10]
        assert worker.batches[1:] == [[3, 5]]
        with pytest.raises(asyncio.CancelledError):
            await gone
        await worker.batcher.close()

    scene(play)


def test_the_others_do_not_wait_for_the_announced_nor_travel_with_them() -> None:
    async def play() -> None:
        worker = Worker()
        worker.batcher.announce(["a", "b"])
        a = worker.ask(1, "a")
        assert await asyncio.gather(worker.ask(11, ""), worker.ask(10, "judge")) == [22, 20]
        assert not a.done()
        worker.gate.clear()
        held = worker.ask(12, "judge")
        await asyncio.sleep(0.05)
        later = [worker.ask(2, "b"), worker.ask(13, "judge")]
        worker.gate.set()
        assert await asyncio.gather(a, held, *later) == [2, 24, 4, 26]
        assert worker.batches == [[10, 11], [12], [1, 2], [13]]
        await worker.batcher.close()

    scene(play)


def test_eager_waits_for_nobody() -> None:
    async def play() -> None:
        worker = Worker(lockstep=False)
        worker.batcher.announce(["a", "b"])
        assert await asyncio.gather(worker.ask(2, "a"), worker.ask(1, "x")) == [4, 2]
        assert worker.batches == [[1, 2]]
        await worker.batcher.close()

    scene(play)


def test_an_error_reaches_the_callers_of_its_batch_and_nobody_else() -> None:
    async def play() -> None:
        worker = Worker(max_rows=2)
        worker.batcher.announce(list("abc"))
        results = await asyncio.gather(
            worker.ask(-5, "a"), worker.ask(-4, "b"), worker.ask(7, "c"), return_exceptions=True
        )
        assert [type(result) for result in results] == [ArithmeticError, ArithmeticError, int]
        for session in "abc":
            worker.batcher.end(session)
        assert await worker.ask(1, "d") == 2
        await worker.batcher.close()

    scene(play)


def test_a_job_wider_than_a_batch_travels_alone() -> None:
    async def play() -> None:
        worker = Worker(max_rows=4)
        worker.batcher.announce(list("abc"))
        await asyncio.gather(worker.ask(1, "a", rows=2), worker.ask(2, "b", rows=9), worker.ask(3, "c", rows=2))
        assert worker.batches == [[1], [2], [3]]
        await worker.batcher.close()

    scene(play)


def test_cancelling_in_the_middle_of_a_batch_leaves_the_rest_alone() -> None:
    async def play() -> None:
        worker = Worker()
        worker.batcher.announce(["a", "b"])
        worker.gate.clear()
        a, b = worker.ask(1, "a"), worker.ask(2, "b")
        await asyncio.sleep(0.02)
        a.cancel()
        await asyncio.sleep(0)
        worker.gate.set()
        assert await b == 4
        assert await worker.ask(3, "b") == 6  # a is gone: b is a round of its own
        await worker.batcher.close()

    scene(play)


def test_closing_refuses_what_waits_and_what_comes() -> None:
    async def play() -> None:
        worker = Worker()
        worker.batcher.announce(["a", "b"])
        waiting = worker.ask(1, "a")
        await asyncio.sleep(0)
        await worker.batcher.close()
        await worker.batcher.close()
        with pytest.raises(RuntimeError, match="closed"):
            await waiting
        with pytest.raises(RuntimeError, match="closed"):
            await worker.ask(2, "b")

    scene(play)
