"""`runner view`: the report and the files of one run, on the loopback interface behind a token in the URL.

The token keeps other users of the machine out, the check of the Host header pages that rebind a name to 127.0.0.1.
Only the report is served as HTML; everything else is plain text or bytes, because it holds what models wrote.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from plugym.errors import BadInput, PlugymError
from plugym.store import RunDir
from plugym_runners.report.html import write_report

HOST = "127.0.0.1"
TEXT = {".toml", ".jsonl", ".json", ".log"}
HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store"}


class Viewer:
    """Serves one run. The report is written again when metrics are newer than it is, so reloading follows a run."""

    def __init__(self, run: RunDir, token: str | None = None) -> None:
        self.run = run
        self.token = token or secrets.token_urlsafe(24)
        self._root = run.path.resolve()
        self._writing = asyncio.Lock()

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/{token}/", self._report)
        app.router.add_get("/{token}/files/{path:.+}", self._file)
        return app

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        name = request.host.rpartition(":")[0] or request.host
        token = request.match_info.get("token", "")
        if name not in (HOST, "localhost") or not hmac.compare_digest(token.encode(), self.token.encode()):
            raise web.HTTPNotFound
        response = await handler(request)
        response.headers.update(HEADERS)
        return response

    async def _report(self, request: web.Request) -> web.StreamResponse:
        async with self._writing:
            if self._stale():
                try:
                    await asyncio.to_thread(write_report, self.run)
                except PlugymError as error:
                    raise web.HTTPInternalServerError(text=f"{error}\n") from error
        return web.FileResponse(self.run.path / "report.html")

    def _stale(self) -> bool:
        report = self.run.path / "report.html"
        sources = [self.run.metrics_path, self.run.evals_path, *self.run.group_files()]
        newest = max((path.stat().st_mtime for path in sources if path.exists()), default=0.0)
        return not report.exists() or report.stat().st_mtime < newest

    async def _file(self, request: web.Request) -> web.StreamResponse:
        path = self.inside(request.match_info["path"])
        if path is None:
            raise web.HTTPNotFound
        kind = "text/plain; charset=utf-8" if path.suffix in TEXT else "application/octet-stream"
        return web.FileResponse(path, headers={"Content-Type": kind})

    def inside(self, relative: str) -> Path | None:
        """A file of the run by its path, None when there is none or it lies outside, symbolic links followed."""
        try:
            path = (self._root / relative).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):  # not there, a NUL in the name, a loop of links
            return None
        return path if path.is_file() and path.is_relative_to(self._root) else None


async def serve(run: RunDir, port: int, started: Callable[[str], None]) -> None:
    """Serve until cancelled; `started` is called with the URL. Port 0 takes a free one. Raises `BadInput`."""
    viewer = Viewer(run)
    runner = web.AppRunner(viewer.app(), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            raise BadInput(f"port {port} cannot be used: {error.strerror}; choose another with --port") from error
        bound = runner.addresses[0][1]
        started(f"http://{HOST}:{bound}/{viewer.token}/")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
