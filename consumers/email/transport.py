"""One HTTP request under one deadline, and whether any of it can have left this machine."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import cache
from typing import Final, cast

import httpx

from consumers.email.line import BEFORE_FIRST_BYTE, Line

_log = logging.getLogger(__name__)

#: A provider's answer is a few hundred bytes; of a longer one only this much is read.
BODY_BYTES_MAX: Final = 64 * 1024
#: Whatever else is known, these speak of a request under way.
_UNDER_WAY: Final = (
    httpx.ReadError,
    httpx.ReadTimeout,
    httpx.WriteError,
    httpx.WriteTimeout,
    httpx.RemoteProtocolError,
)
#: Errors whose text helps a person and can't hold a header of ours.
_TELLING: Final = (httpx.ConnectError, httpx.RemoteProtocolError)


@dataclass(frozen=True, slots=True)
class Received:
    """An answer whose status line arrived; ``body`` may be cut short."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """No status arrived. ``may_have_left``: the first byte of the request may have been written."""

    reason: str
    may_have_left: bool
    detail: str | None = None


class NotStarted(Exception):
    """The caller said no at the last moment; nothing was written."""


class Transport:
    """Sends POST requests, each on a connection that no other request uses at the same time.

    No client of httpx around them, which would look for redirects, a .netrc (that replaces the
    Authorization header) and a proxy (which may repeat requests); of the environment only
    SSL_CERT_FILE and SSL_CERT_DIR count.

    ``make_line`` replaces the network (``httpx.MockTransport`` in tests).
    """

    def __init__(self, make_line: Callable[[], httpx.AsyncBaseTransport] | None = None) -> None:
        self._make_line = make_line or (lambda: Line(certificates))
        self._idle: list[httpx.AsyncBaseTransport] = []
        self._closing: set[asyncio.Task[None]] = set()

    async def post(
        self,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        *,
        deadline_seconds: float,
        may_start: Callable[[], bool],
    ) -> Received | Broken:
        """Send one request and return what came back within ``deadline_seconds``.

        ``may_start`` is asked before connecting and again immediately before the first byte.
        Raises nothing that the outside causes; ``asyncio.CancelledError`` passes through.
        """
        if deadline_seconds <= 0:
            return Broken("deadline", may_have_left=False)
        if not may_start():
            return Broken("not_started", may_have_left=False)
        line = self._idle.pop() if self._idle else self._make_line()
        call = _Call(may_start)
        try:
            return await call.perform(line, url, headers, body, deadline_seconds)
        finally:
            if call.whole:
                self._idle.append(line)
            else:
                self._discard(line)

    async def close(self) -> None:
        """Close all connections."""
        for line in self._idle:
            self._discard(line)
        self._idle.clear()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _discard(self, line: httpx.AsyncBaseTransport) -> None:
        """Close a connection beside the caller, which may be cancelled or out of time."""
        task = asyncio.create_task(line.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _Call:
    """One request on its way: how far it came."""

    def __init__(self, may_start: Callable[[], bool]) -> None:
        self._may_start = may_start
        self._may_have_left = False
        self._response: httpx.Response | None = None
        self._body = bytearray()
        #: The answer was read to its end, so the connection can serve another request.
        self.whole = False

    async def perform(
        self,
        line: httpx.AsyncBaseTransport,
        url: str,
        headers: Mapping[str, str],
        body: bytes,
        deadline_seconds: float,
    ) -> Received | Broken:
        try:
            # One for all of it: a slow drip would pass any that count from chunk to chunk.
            async with asyncio.timeout(deadline_seconds):
                request = httpx.Request(
                    "POST",
                    _parsed(url),
                    # Unpacking would let a small answer grow without bound.
                    headers={**headers, "Accept-Encoding": "identity"},
                    content=body,
                    extensions={BEFORE_FIRST_BYTE: self._before_first_byte},
                )
                await self._exchange(line, request)
        except Exception as error:  # noqa: BLE001 -- what left must be said of every error
            if self._response is None:
                return self._broken(error)
        return self._received()

    async def _exchange(self, line: httpx.AsyncBaseTransport, request: httpx.Request) -> None:
        self._response = response = await line.handle_async_request(request)
        try:
            ended = await self._read(response)
        finally:
            await response.aclose()
        self.whole = ended

    async def _read(self, response: httpx.Response) -> bool:
        """Read the body, up to the limit; say whether that was all of it."""
        if response.is_stream_consumed:  # by a transport that doesn't stream, such as a mock
            self._body += response.content
            return True
        async with aclosing(cast("AsyncGenerator[bytes]", response.aiter_raw())) as chunks:
            async for chunk in chunks:
                self._body += chunk
                if len(self._body) > BODY_BYTES_MAX:
                    return False
        return True

    def _before_first_byte(self) -> None:
        if not self._may_start():
            raise NotStarted
        self._may_have_left = True

    def _received(self) -> Received:
        assert self._response is not None  # noqa: S101 -- only called once a status is there
        headers = {name.lower(): value for name, value in self._response.headers.items()}
        return Received(self._response.status_code, headers, bytes(self._body))

    def _broken(self, error: Exception) -> Broken:
        kind = type(error)
        if not isinstance(error, httpx.HTTPError | TimeoutError | NotStarted | UnicodeEncodeError):
            # The type alone: the text may hold a header or an address.
            _log.error("a request ended in an unexpected %s", kind.__name__)
        reason = "deadline" if kind is TimeoutError else _snake_case(kind.__name__)
        detail = str(error) if isinstance(error, _TELLING) else None
        return Broken(reason, self._may_have_left or isinstance(error, _UNDER_WAY), detail)


@cache
def certificates() -> ssl.SSLContext:
    """Those that httpx trusts. Reading them takes about 50 ms: once per process."""
    context = httpx.create_ssl_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@cache
def _parsed(url: str) -> httpx.URL:
    return httpx.URL(url)


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
