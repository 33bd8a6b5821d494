"""A model server as a child process: started with an argument list, watched until it answers, ended with its children.

It sees none of our environment but a short list, listens on the loopback only, and takes requests with a key made for
this one process. The key goes by environment variable, because arguments are there for every user to read.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from plugym.errors import BadInput, InfraError, InfraKind

_PASSED_ON = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "HF_HOME", "XDG_CACHE_HOME"),
)
_TAIL = 12


class Server:
    """One process group. `command` is the program and its arguments; the port is added as `--port N`.

    `environment` comes on top of what is passed on; `log` is a file for all it prints.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.key = secrets.token_urlsafe(24)
        self.root = ""
        self._command = tuple(command)
        self._environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | dict(environment)
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, deadline: float) -> None:
        """Returns when `/health` answers. Raises `BadInput` when the program is not there, `InfraError` when it ends
        or is not ready within `deadline` seconds; nothing is left running then."""
        port = _free_port()
        self.root = f"http://127.0.0.1:{port}"
        # The kernel ends the server should this process be killed without a chance to clean up.
        lifeline = (setpriv, "--pdeathsig", "TERM", "--") if (setpriv := shutil.which("setpriv")) else ()
        program = shutil.which(self._command[0])
        if program is None:
            raise BadInput(f"engine vllm: there is no program {self._command[0]!r}: set engine.command")
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*lifeline, program, *self._command[1:], "--port", str(port)),
                env={**self._environment, "VLLM_API_KEY": self.key},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            await self._ready(self._process, deadline)
        except BaseException:
            await self.stop()
            raise

    async def _ready(self, process: asyncio.subprocess.Process, deadline: float) -> None:
        end = time.monotonic() + deadline
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while time.monotonic() < end:
                if process.returncode is not None:
                    problem = f"the server ended with code {process.returncode} before it was ready"
                    raise InfraError(InfraKind.ENGINE, f"{problem}: {self._last_lines()}", retryable=False)
                try:
                    async with session.get(f"{self.root}/health") as response:
                        if response.status == 200:
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass  # it is still loading; the deadline decides
                await asyncio.sleep(0.2)
        problem = f"the server was not ready within {deadline:g} s"
        raise InfraError(InfraKind.ENGINE, f"{problem}: {self._last_lines()}", retryable=False)

    def _last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL:]
        return " | ".join(line.strip() for line in lines).replace(self.key, "***") or "it printed nothing"

    async def stop(self, grace: float = 10.0) -> None:
        """End the whole group: asked first, killed after `grace` seconds. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):  # what SIGKILL below is for
                await asyncio.wait_for(process.wait(), grace)
        _signal(process.pid, signal.SIGKILL)  # also workers that outlived the server
        await process.wait()


def _signal(group: int, number: int) -> None:
    with suppress(ProcessLookupError):  # nobody is left in it
        os.killpg(group, number)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
