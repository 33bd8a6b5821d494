"""Running anybody's environment from asyncio: one adapter for each `isolation`, written once.

`inline` calls the environment on the loop, `thread` gives each instance a daemon thread of its own (so it is always
entered from the same thread, and one that hangs can be abandoned), `process` gives it a child process that can be
killed. Asynchronous environments are awaited. The pool lends instances out and retires those that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from plugym.env import AgentEnv, AnyEnv, AsyncAgentEnv, Info, Isolation, Observation, StepResult
from plugym.errors import Failure, InfraError, InfraKind, PlugymError, boundary
from plugym.message import Action
from plugym.task import Task

log = logging.getLogger("plugym.rollout")

CLOSE_SECONDS = 10.0
"""How long an environment may take to close before it is left behind (a thread) or killed (a process)."""


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """Makes instances of one environment; picklable, so that a child process can make its own."""

    env_class: type[AgentEnv] | type[AsyncAgentEnv]
    config: BaseModel | None = None

    def __call__(self) -> AnyEnv:
        return self.env_class(self.config)


class EnvHandle(ABC):
    """One environment instance, seen from asyncio."""

    async def reset(self, seed: int, task: Task) -> tuple[Observation, Info]:
        result: tuple[Observation, Info] = await self.call("reset", seed=seed, options={"task": task})
        return result

    async def step(self, action: Action) -> StepResult:
        result: StepResult = await self.call("step", action)
        return result

    @abstractmethod
    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the environment; its exceptions are raised here."""

    async def close(self) -> None:
        """Close the environment; nothing after `abandon` where that took care of it."""
        await self.call("close")

    def abandon(self) -> None:
        """Give up on an instance that failed or overran its deadline: it is never asked for anything but `close`."""


def _as_exception(error: BaseException) -> Exception:
    """What an environment raised, in a form that may cross a future: `sys.exit()` in a plugin must not end the run,
    and asyncio refuses to carry a StopIteration."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    plain = RuntimeError(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
    return plain.with_traceback(error.__traceback__)


class InlineHandle(EnvHandle):
    """Pure, fast environments: a plain call."""

    def __init__(self, env: AgentEnv) -> None:
        self._env = env

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self._env, method)(*args, **kwargs)
        except (SystemExit, StopIteration) as error:
            raise _as_exception(error) from None


class AsyncHandle(EnvHandle):
    """Natively asynchronous environments."""

    def __init__(self, env: AsyncAgentEnv) -> None:
        self._env = env

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return await getattr(self._env, method)(*args, **kwargs)
        except SystemExit as error:
            raise _as_exception(error) from None


class ThreadHandle(EnvHandle):
    """A daemon thread per instance; the environment is made, used and closed on it."""

    def __init__(self, factory: Callable[[], AnyEnv]) -> None:
        self._jobs: queue.SimpleQueue[tuple[str, tuple[Any, ...], dict[str, Any], asyncio.Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._factory = factory
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="plugym-env", daemon=True)
        self._thread.start()

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs.put((method, args, kwargs, future))
        return await future

    def _serve(self) -> None:
        env: AnyEnv | None = None
        while (job := self._jobs.get()) is not None:
            method, args, kwargs, future = job
            try:
                env = self._factory() if env is None else env
                _deliver(future, getattr(env, method)(*args, **kwargs), None)
            except BaseException as error:  # the caller, on the loop, is the one to judge it
                _deliver(future, None, _as_exception(error))
            if method == "close":
                return
        if env is not None:
            try:
                env.close()
            except Exception:  # nobody waits for an abandoned instance: the log is where this can be said
                log.warning("an abandoned environment failed to close", exc_info=True)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self.call("close")

    def abandon(self) -> None:
        """The thread closes the environment when it gets to it; one that hangs for ever is left behind."""
        self._closed = True
        self._jobs.put(None)


def _deliver(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    """Hand a result to the loop, unless the caller has given up or the loop is gone."""

    def settle() -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    with contextlib.suppress(RuntimeError):  # the loop was closed in the meantime: nobody waits any more
        future.get_loop().call_soon_threadsafe(settle)


class ProcessHandle(EnvHandle):
    """A child process per instance (spawned, never forked from a threaded parent), killed when abandoned.

    What crosses the pipe is pickled by our own two ends of trusted plugin code; model-written code never runs here
    (that is what a sandbox is for).
    """

    def __init__(self, factory: EnvFactory) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_child_main, args=(child, factory), daemon=True)
        self._process.start()
        child.close()
        self._closed = False

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            self._pipe.send((method, args, kwargs))
            await self._readable()
            ok, value = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join(timeout=1)
            raise RuntimeError(f"the environment's process died (exit code {self._process.exitcode})") from None
        if ok:
            return value
        raise value.error() if isinstance(value, Failure) else value

    async def _readable(self) -> None:
        """Wait for the child's answer without a thread: the pipe is a file descriptor of the loop."""
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        descriptor = self._pipe.fileno()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await asyncio.wait_for(self.call("close"), timeout=CLOSE_SECONDS)
        finally:
            self.abandon()

    def abandon(self) -> None:
        self._closed = True
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _child_main(pipe: Any, factory: EnvFactory) -> None:
    env: AnyEnv | None = None
    while True:
        try:
            method, args, kwargs = pipe.recv()
        except EOFError:
            return
        try:
            with boundary(InfraKind.ENV, method):  # classified here, where the traceback still says the line
                env = factory() if env is None else env
                pipe.send((True, getattr(env, method)(*args, **kwargs)))
        except InfraError as error:
            pipe.send((False, Failure.of(error)))
        except PlugymError as error:
            pipe.send((False, error))
        if method == "close":
            return


class EnvPool:
    """Lends out environment instances and keeps them warm between episodes.

    An instance that failed is retired in the background: the episode's retry does not wait for it.
    """

    def __init__(self, factory: EnvFactory, isolation: Isolation) -> None:
        self._factory = factory
        self._isolation = isolation
        self._idle: list[EnvHandle] = []
        self._retiring: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self) -> EnvHandle:
        """An idle instance or a new one. Raises whatever the environment's constructor raises."""
        if self._closed:
            raise RuntimeError("the environment pool is closed")
        return self._idle.pop() if self._idle else self._make()

    def _make(self) -> EnvHandle:
        env_class = self._factory.env_class
        if issubclass(env_class, AsyncAgentEnv):
            return AsyncHandle(env_class(self._factory.config))
        if self._isolation == "thread":
            return ThreadHandle(self._factory)
        if self._isolation == "process":
            return ProcessHandle(self._factory)
        return InlineHandle(env_class(self._factory.config))

    def give_back(self, handle: EnvHandle, *, broken: bool) -> None:
        """Take an instance back; one that is broken, or comes after `close`, is retired."""
        if not broken and not self._closed:
            self._idle.append(handle)
            return
        if broken:
            handle.abandon()
        task = asyncio.get_running_loop().create_task(_retire(handle))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Close every instance that is not lent out. Idempotent."""
        self._closed = True
        idle, self._idle = self._idle, []
        await asyncio.gather(*map(_retire, idle), *self._retiring)


async def _retire(handle: EnvHandle) -> None:
    """Close; an environment that cannot even be closed is reported, and does not stop the others."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await handle.close()
    except Exception as error:
        log.warning("an environment failed to close: %s: %s", type(error).__name__, error)
