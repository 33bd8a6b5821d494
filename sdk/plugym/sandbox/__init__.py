"""The contract of sandboxes: where code that a model wrote is run (entry-point group `plugym.sandboxes`).

A back-end runs one program under limits and says exactly how it ended. What the program did wrong is a status; what
the sandbox did wrong is `Status.INFRA_ERROR`, and never the program's fault. No back-end ships yet: a tool or a check
that needs one is told so when it asks for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import BaseModel

Language = Literal["python", "bash"]


class Status(StrEnum):
    """How a program ended."""

    OK = "ok"
    """Exit code 0."""
    RUNTIME_ERROR = "runtime_error"
    """It ran and failed."""
    COMPILE_ERROR = "compile_error"
    """It never ran: the source does not parse."""
    TIME_LIMIT = "time_limit"
    """It was stopped for using too much time, of the processor or of the clock."""
    MEMORY_LIMIT = "memory_limit"
    """It was stopped for using too much memory."""
    OUTPUT_LIMIT = "output_limit"
    """It was stopped for writing too much."""
    INFRA_ERROR = "infra_error"
    """The sandbox broke: the run says nothing about the program."""


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What a program may use: seconds of processor and clock, bytes of memory and of output per stream, processes."""

    cpu_s: float = 10.0
    wall_s: float = 20.0
    memory: int = 512 * 2**20
    output: int = 64 * 2**10
    processes: int = 32


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came of one program. `truncated` says that `stdout` or `stderr` lost its middle; `queue_s` is the time it
    waited for a free place, which is in neither of the other two; `files` are those it left, by relative path."""

    status: Status
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    truncated: bool = False
    cpu_s: float = 0.0
    wall_s: float = 0.0
    queue_s: float = 0.0
    files: Mapping[str, bytes] = field(default_factory=dict)


class SandboxConfig(BaseModel, extra="forbid"):
    """Settings of a back-end that has none of its own."""


class SandboxSession(ABC):
    """An interpreter that keeps its state between runs."""

    @abstractmethod
    async def run(self, code: str, *, limits: SandboxLimits | None = None) -> RunResult:
        """Run in the state that earlier runs left. After the state was lost, `INFRA_ERROR` once, then a fresh one."""

    @abstractmethod
    async def close(self) -> None:
        """End it. Idempotent."""


class Sandbox(ABC):
    """Constructed as `Sandbox(config)`; `open` before the first run, `close` at the end.

    `guarantees` names what this back-end isolates (`network`, `filesystem`, `memory`, `processes`, ...): a conformance
    test exists for each, and a guarantee not named here must not be relied on.
    """

    Config: ClassVar[type[BaseModel]] = SandboxConfig
    guarantees: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, config: BaseModel | None = None) -> None:
        self.config = config if config is not None else self.Config()

    async def open(self) -> None:
        """Start. Raises `BadInput` naming what this machine lacks."""

    @abstractmethod
    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        stdin: str = "",
        files: Mapping[str, bytes] | None = None,
        limits: SandboxLimits | None = None,
    ) -> RunResult:
        """Run one program in a fresh state. Never raises for what the program does."""

    @abstractmethod
    async def session(self, *, language: Language = "python") -> SandboxSession:
        """An interpreter with state."""

    async def close(self) -> None:
        """End everything. Idempotent."""
