"""The HTTP side of an engine: one session, tries and retries, every kind of failure named and counted.

What a caller gets is a parsed answer, a `Refusal` that only it can understand (a 400), or an `InfraError`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import aiohttp

from plugym.errors import InfraError, InfraKind
from plugym_runners.engines.refusals import Flaw, Refusal, checked, hide, retry_after
from plugym_runners.engines.settings import EndpointConfig, request_headers
from plugym_runners.engines.stream import assemble
from plugym_runners.engines.throttle import Throttle

T = TypeVar("T")

_FINAL = (400, 413, 422)
"""Statuses whose text decides what to do: the request itself is at fault."""


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        end = body.strip()[-1:]
        what = "truncated JSON" if end not in (b"}", b"]") and body[:1] in (b"{", b"[") else "not JSON"
        raise Flaw("bad_json", f"the answer is {what}") from error


class Client:
    """Talks to one server. `counts` holds requests, retries and each kind of failure; it outlives the connection."""

    def __init__(self, config: EndpointConfig, base_url: str, key: str | None, counts: Counter[str]) -> None:
        self.base_url = base_url
        self.counts = counts
        self.throttle = Throttle(config.max_concurrent, config.requests_per_minute)
        self._config = config
        headers = request_headers(config, key)
        named = [headers[name] for name, value in config.headers.items() if value.startswith("$")]
        self._secrets = [*([key] if key else []), *named]
        self._session = aiohttp.ClientSession(
            # The throttle limits what runs at once, so that waiting for a connection never eats into a time-out.
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=headers,
            timeout=aiohttp.ClientTimeout(
                total=config.timeout, sock_connect=config.connect_timeout, sock_read=config.read_timeout
            ),
        )

    async def close(self) -> None:
        await self._session.close()

    async def post(self, path: str, body: dict[str, Any], read: Callable[[Any], T]) -> T:
        """What `read` makes of the parsed answer; it raises `Flaw` for an answer that should be asked for again.

        Raises `Refusal` when the request is at fault (400, 413, 422), `InfraError` for all else that retries did not
        mend.
        """
        return await self._retried("POST", self.base_url + path, json.dumps(body).encode(), read)

    async def get(self, path: str, read: Callable[[Any], T]) -> T:
        """As `post`, with GET."""
        return await self._retried("GET", self.base_url + path, None, read)

    async def control(self, path: str, body: dict[str, Any] | None = None) -> str:
        """The plain text of an answer to a POST beside the API: `path` is from the root of the server."""
        url = self.base_url.removesuffix("/v1") + path
        return await self._retried("POST", url, json.dumps(body or {}).encode(), str, parse=bytes.decode)

    async def _retried(
        self,
        method: str,
        url: str,
        data: bytes | None,
        read: Callable[[Any], T],
        parse: Callable[[bytes], Any] = _parsed,
    ) -> T:
        attempt = 0
        while True:
            try:
                async with self.throttle:
                    self.counts["requests"] += 1
                    result = checked(read, await self._once(method, url, data, parse))
                self.throttle.succeeded()
                return result
            except Flaw as flaw:
                self.counts[flaw.kind] += 1
                if isinstance(flaw, Refusal):
                    flaw = flaw.hiding(self._secrets)
                    if flaw.status in _FINAL:
                        raise flaw from None
                attempt += 1
                if not flaw.retry or attempt > self._config.retries:
                    raise self._failure(flaw, attempt, f"{method} {url}") from flaw
                pause = self._pause(flaw, attempt)
            self.counts["retries"] += 1
            await asyncio.sleep(pause)

    async def _once(self, method: str, url: str, data: bytes | None, parse: Callable[[bytes], Any]) -> Any:
        """The parsed answer of one try. Raises `Flaw`."""
        try:
            async with self._session.request(method, url, data=data, allow_redirects=False) as response:
                if response.status != 200:
                    text = (await response.read()).decode(errors="replace")
                    raise Refusal(response.status, text, retry_after(response.headers))
                if response.content_type == "text/event-stream":
                    return await assemble(response.content.iter_any())
                body = await response.read()
        except TimeoutError as error:
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise Flaw("unreachable", f"no connection within {self._config.connect_timeout:g} s") from error
            if isinstance(error, aiohttp.SocketTimeoutError):
                problem = f"the connection is open but silent: no byte within {self._config.read_timeout:g} s"
                raise Flaw("silent", problem) from error
            raise Flaw("timeout", f"no whole answer within {self._config.timeout:g} s") from error
        except aiohttp.ClientConnectorError as error:
            number = error.os_error.errno or 0
            # The system's own words: the library's hold the port, and equal failures must read alike.
            reason = os.strerror(number) if number > 0 else error.os_error.strerror or str(error.os_error)
            raise Flaw("unreachable", f"cannot connect: {reason}") from error
        except aiohttp.ClientPayloadError as error:
            raise Flaw("cut_answer", "the connection was lost in the middle of the answer") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Flaw("disconnected", f"the connection was lost: {type(error).__name__}") from error
        return parse(body)

    def _pause(self, flaw: Flaw, attempt: int) -> float:
        """Seconds until this request is tried again. A server that is overrun makes the others wait, too."""
        config = self._config
        pause: float = min(config.backoff * 2.0 ** (attempt - 1), config.max_wait)
        if isinstance(flaw, Refusal):
            pause = min(pause if flaw.after is None else flaw.after, config.max_wait)
            if flaw.overrun:
                self.throttle.refused(pause)
                return 0.0  # the throttle holds it back
        return pause * random.uniform(0.5, 1.0)

    def _failure(self, flaw: Flaw, attempts: int, where: str) -> InfraError:
        tries = f" (tried {attempts} times)" if attempts > 1 else ""
        message = f"{hide(str(flaw), self._secrets)}{tries}"
        return InfraError(InfraKind.ENGINE, message, retryable=flaw.retry, where=where)
