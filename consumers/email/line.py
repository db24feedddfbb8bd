"""One HTTP/1.1 connection that knows when the first byte of a request leaves.

Whether a call surely never reached the provider decides between a repeat and a held job. So the
bytes are handed to the socket here, in one place, and not somewhere below three libraries. What
HTTP is, h11 knows; how to reach a host with several addresses, aiohappyeyeballs; TLS and the socket
are the event loop's.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Final, cast

import h11
import httpx
from aiohappyeyeballs import AddrInfoType, start_connection

#: Node.js closes idle connections after 5 s, others later. Ours are given up before that, so that
#: a request seldom meets a close on its way, which would leave its outcome unknown.
KEEPALIVE_SECONDS: Final = 4.0
#: A host that drops packets is told from a slow provider by this, well inside the deadline.
CONNECT_SECONDS: Final = 10.0
#: The next address of a host is tried after so long (RFC 8305 recommends this).
_NEXT_ADDRESS_SECONDS: Final = 0.25
#: More of a head than any provider sends.
_HEAD_BYTES_MAX: Final = 64 * 1024
#: 100 and 103 come once or twice.
_INFORMATIONAL_MAX: Final = 16
_PORTS: Final = {"http": 80, "https": 443}
#: Scheme, host and port.
_Origin = tuple[str, str, int]
#: The extension of a request whose value is called at the last moment before its first byte leaves.
BEFORE_FIRST_BYTE: Final = "before_first_byte"


class Line(httpx.AsyncBaseTransport):
    """Sends one request at a time to one server, and keeps the connection for the next.

    No retries, no redirects, no proxy, no pool. What the request's extension ``BEFORE_FIRST_BYTE``
    raises is raised, and nothing is written.

    Raises:
        httpx.ConnectError, httpx.ConnectTimeout, httpx.LocalProtocolError: nothing was written.
        httpx.ReadError, httpx.RemoteProtocolError: the request may have arrived.
    """

    def __init__(self, certificates: Callable[[], ssl.SSLContext]) -> None:
        self._certificates = certificates
        self._wire: Wire | None = None
        self._origin: _Origin | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the answer as soon as its head is there; its stream is the body."""
        wire, origin = self._wire, _origin(request.url)
        if wire is None or origin != self._origin or not wire.is_kept:
            await self.aclose()
            wire = self._wire = await self.connect(request.url)
            self._origin = origin
            if wire.has_spoken:
                raise httpx.ConnectError("the server closed or answered before the request")
        wire.send(request, request.extensions.get(BEFORE_FIRST_BYTE, lambda: None))
        head = await wire.head()
        return httpx.Response(head.status_code, headers=list(head.headers), stream=_Body(wire))

    async def aclose(self) -> None:
        """Give the connection up."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    async def connect(self, url: httpx.URL) -> Wire:
        """Reach the server, TLS included; nothing of a request is written."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connected(url)
        except TimeoutError as error:
            raise httpx.ConnectTimeout(f"no connection within {CONNECT_SECONDS:g} s") from error
        except (OSError, RuntimeError, UnicodeError) as error:
            raise httpx.ConnectError(str(error)) from error

    async def _connected(self, url: httpx.URL) -> Wire:
        scheme, host, port = _origin(url)
        tls = self._certificates() if scheme == "https" else None
        reached = await _reached(await _addresses(host, port))
        wire = Wire()
        try:
            await asyncio.get_running_loop().create_connection(
                lambda: wire, sock=reached, ssl=tls, server_hostname=host if tls else None
            )
        except BaseException:
            # First what may stand on the socket: its descriptor is somebody else's a moment later.
            wire.abort()
            with suppress(OSError):
                reached.close()
            raise
        return wire


def _origin(url: httpx.URL) -> _Origin:
    return url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme]


async def _addresses(host: str, port: int) -> Sequence[AddrInfoType]:
    loop = asyncio.get_running_loop()
    return await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _reached(addresses: Sequence[AddrInfoType]) -> socket.socket:
    """Connect to the first that answers.

    A cancellation that comes while the losers of this race are stopped is taken for theirs.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 -- this is a coroutine
    before = task.cancelling()
    reached = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS)
    if task.cancelling() > before:
        reached.close()
        raise asyncio.CancelledError
    return reached


class Wire(asyncio.Protocol):
    """The socket on one side, h11 on the other."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES_MAX)
        self._something: asyncio.Future[None] | None = None
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None
        self._ended = False
        self._idle_since: float | None = None

    # -- what the event loop calls -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._idle_since is not None:
            self.abort()  # It speaks unasked.
            return
        self._http.receive_data(data)
        self._wake()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._error = exc
        if exc is None:
            self._end()
        if not self._closed.done():
            self._closed.set_result(None)
        self._wake()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._http.receive_data(b"")
            self._wake()

    def _wake(self) -> None:
        if self._something is not None and not self._something.done():
            self._something.set_result(None)

    # -- one request and its answer ----------------------------------------------------------------

    @property
    def is_kept(self) -> bool:
        """Whether the next request may go over it: at rest, and not for too long."""
        return (
            self._idle_since is not None
            and self._loop.time() < self._idle_since + KEEPALIVE_SECONDS
            and not self._is_gone
            and not self._has_something_to_read
        )

    @property
    def _is_gone(self) -> bool:
        return self._ended or self._closed.done() or self._open.is_closing()

    @property
    def _open(self) -> asyncio.Transport:
        assert self._transport is not None  # noqa: S101 -- set when the connection stands
        return self._transport

    @property
    def _has_something_to_read(self) -> bool:
        """A close that has arrived, which the event loop has not come to see yet."""
        poll = select.poll()
        poll.register(self._open.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    @property
    def has_spoken(self) -> bool:
        """Whether anything came before a first request; in TLS, tickets may wait in the socket."""
        if self._is_gone or self._http.trailing_data[0]:
            return True
        plain = self._open.get_extra_info("ssl_object") is None
        return plain and self._has_something_to_read

    def send(self, request: httpx.Request, before_first_byte: Callable[[], None]) -> None:
        """Write a request, all of it or nothing."""
        self._idle_since = None
        try:
            head = h11.Request(
                method=request.method, target=request.url.raw_path, headers=request.headers.raw
            )
            parts = (head, h11.Data(data=request.content), h11.EndOfMessage())
            written = b"".join(self._http.send(part) or b"" for part in parts)
        except h11.LocalProtocolError as error:
            raise httpx.LocalProtocolError(str(error)) from error
        before_first_byte()
        self._open.write(written)

    async def head(self) -> h11.Response:
        """Wait for status and headers; informational ones are passed over."""
        for _ in range(_INFORMATIONAL_MAX):
            event = await self._event()
            if isinstance(event, h11.Response):
                return event
        raise httpx.RemoteProtocolError(f"more than {_INFORMATIONAL_MAX} informational answers")

    async def body(self) -> AsyncIterator[bytes]:
        """Read the body; at its end the connection may be used again."""
        while isinstance(event := await self._event(), h11.Data):
            yield bytes(event.data)
        whole = self._http.states == {h11.CLIENT: h11.DONE, h11.SERVER: h11.DONE}
        sent = self._open.get_write_buffer_size() == 0
        if whole and sent and not self._http.trailing_data[0]:
            self._http.start_next_cycle()
            self._idle_since = self._loop.time()
        else:
            self.abort()

    async def _event(self) -> h11.Event:
        while True:
            if self._ended and not self._begun:
                raise httpx.RemoteProtocolError("the server closed without an answer")
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise httpx.RemoteProtocolError(str(error)) from error
            if event is h11.NEED_DATA:
                await self.more()
            else:
                return cast("h11.Event", event)

    async def more(self) -> None:
        """Wait until more has come."""
        if self._closed.done():
            raise httpx.ReadError(str(self._error)) from self._error
        self._something = self._loop.create_future()
        await self._something

    @property
    def _begun(self) -> bool:
        """Whether anything of an answer has come."""
        waits = self._http.their_state is h11.SEND_RESPONSE
        return not waits or bool(self._http.trailing_data[0])

    def abort(self) -> None:
        """Close it in the next turn of the loop, without a word to the other side."""
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """The same, and wait for it."""
        self.abort()
        await self._closed


class _Body(httpx.AsyncByteStream):
    """The body of an answer, as it comes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._wire.body()
