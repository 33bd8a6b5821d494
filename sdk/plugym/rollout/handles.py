"""Running anybody's environment from asyncio: one adapter for each `isolation`, written once.

`inline` calls the environment on the loop, `thread` gives each instance a daemon thread of its own (so it is always
entered from the same thread, and one that hangs can be abandoned), `process` gives it a child process that can be
killed. Asynchronous environments are awaited. The pool lends instances out and drops those that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from plugym.env import AgentEnv, AnyEnv, AsyncAgentEnv, Info, Isolation, Observation, StepResult
from plugym.message import Action
from plugym.task import Task


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
        """Close the environment. Idempotent."""
        await self.call("close")

    def abandon(self) -> None:
        """Give up on an instance that overran its deadline or failed."""


class InlineHandle(EnvHandle):
    """Pure, fast environments: a plain call."""

    def __init__(self, env: AgentEnv) -> None:
        self._env = env

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._env, method)(*args, **kwargs)


class AsyncHandle(EnvHandle):
    """Natively asynchronous environments."""

    def __init__(self, env: AsyncAgentEnv) -> None:
        self._env = env

    async def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return await getattr(self._env, method)(*args, **kwargs)


class ThreadHandle(EnvHandle):
    """A daemon thread per instance; the environment is made, used and closed on it."""

    def __init__(self, factory: Callable[[], AnyEnv]) -> None:
        self._jobs: queue.SimpleQueue[tuple[str, tuple[Any, ...], dict[str, Any], asyncio.Future[Any]] | None]
        self._jobs = queue.SimpleQueue()
        self._factory = factory
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
                env = env or self._factory()
                _deliver(future, getattr(env, method)(*args, **kwargs), None)
            except BaseException as error:  # the caller, on the loop, is the one to judge it
                _deliver(future, None, error)
            if method == "close":
                return

    def abandon(self) -> None:
        self._jobs.put(None)


def _deliver(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    """Hand a result to the loop, unless the caller has given up or the loop is gone."""

    def settle() -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(settle)


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
        self._pipe.send((method, args, kwargs))
        await self._readable()
        ok, value = self._pipe.recv()
        if not ok:
            raise value
        return value

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
        with contextlib.suppress(TimeoutError, EOFError, OSError):  # the kill below answers a child that does not close
            await asyncio.wait_for(self.call("close"), timeout=10)
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
            env = env or factory()
            pipe.send((True, getattr(env, method)(*args, **kwargs)))
        except Exception as error:
            pipe.send((False, RuntimeError(f"{type(error).__name__}: {error}")))
        if method == "close":
            return


class EnvPool:
    """Lends out environment instances and keeps them warm between episodes."""

    def __init__(self, factory: EnvFactory, isolation: Isolation) -> None:
        self._factory = factory
        self._isolation = isolation
        self._idle: list[EnvHandle] = []

    def take(self) -> EnvHandle:
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
        if broken:
            handle.abandon()
        else:
            self._idle.append(handle)

    async def close(self) -> None:
        """Close all idle instances. Idempotent."""
        idle, self._idle = self._idle, []
        for handle in idle:
            await handle.close()
