"""Threads and processes of environments: what they raise arrives, and whatever hangs or dies is got rid of."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from puppets import (
    ALIVE,
    RELEASE,
    AsyncPuppet,
    InlinePuppet,
    ProcessPuppet,
    Puppet,
    StuckProcessPuppet,
    task,
    wait_until,
)

from plugym.errors import BadInput, InfraError, InfraKind
from plugym.message import Action
from plugym.rollout.handles import EnvFactory, EnvPool, ProcessHandle, ThreadHandle


@pytest.fixture(autouse=True)
def _fresh_puppets() -> Iterator[None]:
    RELEASE.clear()
    ALIVE.clear()
    yield
    RELEASE.set()


def env_threads() -> int:
    return sum(thread.name == "plugym-env" for thread in threading.enumerate())


def test_a_process_reports_what_happened_and_goes_on() -> None:
    """One child for many questions, because starting one costs a second."""

    async def main() -> None:
        handle = ProcessHandle(EnvFactory(ProcessPuppet))
        observation, _ = await handle.reset(3, task("a", turns=2))
        (expected, *_), _ = InlinePuppet().reset(seed=3, options={"task": task("a", turns=2)})
        assert observation == (expected,)
        for what, kind, message, retryable in [
            ("raise", InfraKind.ENV, "reset: ValueError: boom", True),
            ("bug", InfraKind.ENV, "reset: TypeError: a mistake in the code", False),
            ("sandbox", InfraKind.SANDBOX, "the sandbox is gone", True),
            ("timeout", InfraKind.ENV, "reset: TimeoutError: the game server did not answer", True),
        ]:
            with pytest.raises(InfraError) as caught:
                await handle.reset(3, task("a", reset=what))
            error = caught.value
            assert (error.kind, str(error), error.retryable) == (kind, message, retryable)
        assert "puppets.py" in error.where, "the author's own line, across the process boundary"
        await handle.reset(3, task("a", at0="crash"))
        with pytest.raises(RuntimeError, match=r"process died \(exit code 7\)"):
            await handle.step(Action.of("x"))
        with pytest.raises(RuntimeError, match="process died"):
            await handle.step(Action.of("x"))
        with pytest.raises(RuntimeError, match="process died"):
            await handle.close()
        await handle.close()

    asyncio.run(main())
    assert not multiprocessing.active_children()


def test_a_hanging_process_is_killed_and_a_failing_close_still_ends_it() -> None:
    async def main() -> None:
        hanging, refusing = ProcessHandle(EnvFactory(ProcessPuppet)), ProcessHandle(EnvFactory(StuckProcessPuppet))
        await asyncio.gather(hanging.reset(0, task("a", at0="hang")), refusing.reset(0, task("a")))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hanging.step(Action.of("x")), 0.1)
        hanging.abandon()
        await hanging.close()
        with pytest.raises(BadInput, match="read-only"):
            await refusing.close()

    asyncio.run(main())
    assert not multiprocessing.active_children()


def test_a_thread_is_made_used_and_closed_in_one_thread() -> None:
    seen: set[int] = set()

    class Watch(Puppet):
        def __init__(self, config: Any = None) -> None:
            seen.add(threading.get_ident())
            super().__init__(config)

        def reset(self, **options: Any) -> Any:
            seen.add(threading.get_ident())
            return super().reset(**options)

        def close(self) -> None:
            seen.add(threading.get_ident())
            super().close()

    async def main() -> None:
        handle = ThreadHandle(EnvFactory(Watch))
        await handle.reset(0, task("a"))
        assert ALIVE["Watch"] == 1
        await handle.step(Action.of("x"))
        assert ALIVE["Watch"] == 1, "an environment that is falsy is made once all the same"
        await handle.close()
        await asyncio.wait_for(handle.close(), 1)

    before = env_threads()
    asyncio.run(main())
    assert len(seen) == 1
    assert threading.get_ident() not in seen
    assert wait_until(lambda: env_threads() == before)


def test_a_hanging_thread_is_left_behind_and_closes_when_it_lets_go() -> None:
    async def main() -> None:
        handle = ThreadHandle(EnvFactory(Puppet))
        await handle.reset(0, task("a", at0="hang"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.step(Action.of("x")), 0.05)
        handle.abandon()
        await asyncio.wait_for(handle.close(), 1)

    before = env_threads()
    asyncio.run(main())  # the loop is closed before the thread answers
    assert ALIVE["Puppet"] == 1
    RELEASE.set()
    assert wait_until(lambda: ALIVE["Puppet"] == 0 and env_threads() == before)


@pytest.mark.parametrize("env", [Puppet, InlinePuppet, AsyncPuppet])
def test_the_pool_keeps_instances_warm_and_retires_broken_ones(env: Any) -> None:
    async def main() -> None:
        pool = EnvPool(EnvFactory(env), getattr(env, "isolation", "inline"))
        first = pool.take()
        await first.reset(0, task("a"))
        pool.give_back(first, broken=False)
        assert pool.take() is first
        pool.give_back(first, broken=True)
        second = pool.take()
        assert second is not first
        await second.reset(0, task("a"))
        await pool.close()
        pool.give_back(second, broken=False)  # came home after the pool had closed
        await pool.close()
        with pytest.raises(RuntimeError, match="closed"):
            pool.take()

    asyncio.run(main())
    assert wait_until(lambda: not +ALIVE)


def test_one_instance_that_cannot_be_closed_does_not_keep_the_others_open(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(Puppet):
        def close(self) -> None:
            super().close()
            raise OSError("device busy")

    async def main() -> None:
        pool = EnvPool(EnvFactory(Stuck), "thread")
        handles = [pool.take(), pool.take()]
        for handle in handles:
            await handle.reset(0, task("a"))
            pool.give_back(handle, broken=False)
        await pool.close()

    with caplog.at_level(logging.WARNING, "plugym.rollout"):
        asyncio.run(main())
    assert not +ALIVE
    assert [record.getMessage() for record in caplog.records] == [
        "an environment failed to close: OSError: device busy"
    ] * 2
