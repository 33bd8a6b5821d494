"""A headless Chromium driven over its DevTools protocol, with aiohttp: enough to load a page and click through it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

EXECUTABLE = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
    "--window-size=1400,1000",
)


class Page:
    """One tab. `errors` are uncaught exceptions and console errors, `requests` the URLs the page asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._socket = socket
        self._calls = 0

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """One command; events that come before its answer are taken in."""
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": params})
        while True:
            message = json.loads((await self._socket.receive(timeout=30)).data)
            if message.get("id") == self._calls:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return dict(message["result"])
            self._event(message)

    def _event(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message["params"]
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    async def open(self, url: str) -> None:
        """Load a page and wait until its scripts have run."""
        for domain in ("Runtime", "Log", "Network", "Page"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && location.href.startsWith({json.dumps(url[:8])})")

    async def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until a condition holds."""
        async with asyncio.timeout(20):
            while not await self.js(condition):  # noqa: ASYNC110 - a page has no event to wait on
                await asyncio.sleep(0.05)

    async def click(self, selector: str) -> None:
        """A real click with the mouse, in the middle of the first element that matches."""
        find = f"document.querySelector({json.dumps(selector)})"
        await self.js(f"{find}.scrollIntoView({{block: 'center'}})")
        box = await self.js(
            f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({find}.getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.call("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    async def choose(self, name: str, value: str) -> None:
        """Choose in the select with that label."""
        find = f"document.querySelector('select[aria-label={json.dumps(name)}]')"
        await self.js(f"{find}.value = {json.dumps(value)}; {find}.dispatchEvent(new Event('change'))")

    async def screenshot(self) -> bytes:
        """What the window shows, as PNG."""
        return base64.b64decode((await self.call("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def chromium(profile: Path) -> AsyncIterator[Page]:
    """A browser with the empty folder `profile`; it and all its processes are gone at the end."""
    process = _start(profile)
    try:
        port = _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                target = next(t for t in await answer.json() if t["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the session that was started above, nothing else
        process.wait()


def _start(profile: Path) -> subprocess.Popen[bytes]:
    assert EXECUTABLE is not None
    command = [EXECUTABLE, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def _port(file: Path, patience: float = 30) -> int:
    """The port that the browser has chosen, once it has written it down."""
    deadline = time.monotonic() + patience
    while not file.exists() or not file.read_text().strip():
        if time.monotonic() > deadline:
            raise TimeoutError(f"chromium wrote no {file} in {patience} s")
        time.sleep(0.05)
    return int(file.read_text().split()[0])
