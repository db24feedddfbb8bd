"""A TCP proxy that fails on command: in front of PostgreSQL, or of the mail service.

It reads just enough of what passes to know one exchange (a request and its answer) from the next:
of PostgreSQL's protocol the frame of each message (a byte for its type, four for its length;
"Message Formats" in PostgreSQL's documentation), of HTTP the head and ``Content-Length``. A whole
request is collected, then ``decide`` says what becomes of the exchange: so a fault strikes at an
exact byte of a known statement, and "applied, but the answer is lost" is just that.

Each ``door`` is a port of its own, so that whoever was given it is known by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")
CHUNK = 65_536
#: Closes with a reset (RST) instead of an orderly end (FIN), unsent bytes thrown away.
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
START_SECONDS = 20.0


class Side(Enum):
    """Which part of an exchange a fault strikes."""

    REQUEST = "request"
    ANSWER = "answer"


class Way(Enum):
    """What becomes of that part.

    ``SILENCE``: nothing gets through any more, in either direction, and no end is told.
    """

    RESET = "reset"
    HALF = "half, then reset"
    SILENCE = "silence"
    DELAY = "delay"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``after_bytes``: so many get through before a reset. ``seconds``: of a delay.

    A reset that strikes the answer comes after the whole answer, so what was asked is applied.
    """

    side: Side
    way: Way
    after_bytes: int = 0
    seconds: float = 5.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, whole but not yet passed on.

    ``text`` is the SQL (of a prepared statement, too), or the head of an HTTP request; it is empty
    for the start of a PostgreSQL session. ``client``: its ``application_name``. ``number`` counts
    the exchanges of a connection from 1 on.
    """

    door: str
    connection: int
    client: str
    number: int
    text: str


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that has happened. ``rows``: of PostgreSQL's, in an answer that was struck."""

    exchange: Exchange
    fault: Fault
    at: float
    rows: int = 0


Decide = Callable[[Exchange], Fault | None]


@dataclass(frozen=True, slots=True)
class Sent:
    """A piece of what a client sends; ``text`` where it completes a request."""

    data: bytes
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """A piece of an answer."""

    data: bytes
    ends: bool = False
    rows: int = 0


class Framing(Protocol):
    """Takes one connection's bytes apart."""

    client: str

    def sent(self, data: bytes) -> Iterator[Sent | bytes]:
        """Pieces to pass on; bare bytes are the proxy's own answer."""
        ...

    def answered(self, data: bytes) -> Iterator[Answered]:
        """Pieces of answers, in order."""
        ...


class PostgresFraming:
    """Messages of the frontend/backend protocol, version 3."""

    _ENCRYPTION = frozenset({80_877_103, 80_877_104})  # SSLRequest, GSSENCRequest
    _CANCEL = 80_877_102
    #: Parse, Bind, Describe, Execute, Close wait for the Sync that ends their request.
    _COLLECTED = frozenset(b"PBDEC")
    _ENDS_A_REQUEST = frozenset(b"QS")

    def __init__(self) -> None:
        self.client = ""
        self._in = b""
        self._out = b""
        self._started = False
        self._greeted = False
        self._request = b""
        self._text = ""
        self._prepared: dict[bytes, str] = {}

    def sent(self, data: bytes) -> Iterator[Sent | bytes]:
        self._in += data
        while not self._started and len(self._in) >= 8:
            length, code = struct.unpack("!ii", self._in[:8])
            if len(self._in) < length:
                return
            message, self._in = self._in[:length], self._in[length:]
            if code in self._ENCRYPTION:
                yield b"N"
                continue
            self._started = True
            yield Sent(message, self._greeting(message, code))
        yield from self._messages()

    def answered(self, data: bytes) -> Iterator[Answered]:
        self._out += data
        piece, rows = b"", 0
        while (message := _message(self._out)) is not None:
            self._out = self._out[len(message) :]
            piece += message
            rows += message[0:1] == b"D"
            # Of the start of a session the first message is all: what follows may be a dialogue.
            if message[0:1] == b"Z" or not self._greeted:
                self._greeted = True
                yield Answered(piece, ends=True, rows=rows)
                piece, rows = b"", 0
        if piece:
            yield Answered(piece, rows=rows)

    def _greeting(self, message: bytes, code: int) -> str | None:
        if code == self._CANCEL:
            return None
        words = message[8:].split(b"\0")
        parameters = dict(zip(words[::2], words[1::2], strict=False))
        self.client = parameters.get(b"application_name", b"").decode(errors="replace")
        return ""

    def _messages(self) -> Iterator[Sent]:
        while self._started and (message := _message(self._in)) is not None:
            self._in = self._in[len(message) :]
            kind = message[0]
            self._request += message
            self._learn(message)
            if kind in self._COLLECTED:
                continue
            text = self._text if kind in self._ENDS_A_REQUEST else None
            yield Sent(self._request, text)
            self._request = b""
            if text is not None:
                self._text = ""

    def _learn(self, message: bytes) -> None:
        """Keep the SQL of this request, by the name of its statement where it has one."""
        body = message[5:]
        match message[0:1]:
            case b"Q":
                self._text = _text(body)
            case b"P":
                name, _, query = body.partition(b"\0")
                self._prepared[name] = self._text = _text(query)
            case b"B":
                self._text = self._prepared.get(body.split(b"\0", 2)[1], self._text)


class HttpFraming:
    """HTTP/1.1 with ``Content-Length``; an answer without one is taken for one piece."""

    def __init__(self) -> None:
        self.client = ""
        self._in = b""
        self._out = b""

    def sent(self, data: bytes) -> Iterator[Sent | bytes]:
        self._in += data
        while (size := _http_size(self._in)) is not None and len(self._in) >= size:
            request, self._in = self._in[:size], self._in[size:]
            yield Sent(request, request.partition(b"\r\n\r\n")[0].decode("latin-1"))

    def answered(self, data: bytes) -> Iterator[Answered]:
        self._out += data
        size = _http_size(self._out)
        ends = size is not None and len(self._out) >= size
        yield Answered(data, ends=ends)
        if ends:
            self._out = b""


def _message(data: bytes) -> bytes | None:
    if len(data) < 5:
        return None
    size = 1 + int(struct.unpack("!i", data[1:5])[0])
    return data[:size] if len(data) >= size else None


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode(errors="replace")


def _http_size(data: bytes) -> int | None:
    head, end, _ = data.partition(b"\r\n\r\n")
    if not end:
        return None
    length = re.search(rb"(?i)^content-length:\s*(\d+)", head, re.MULTILINE)
    return len(head) + len(end) + (int(length[1]) if length else 0)


class Reset(Exception):
    """Both sides of a connection are to be reset."""


@dataclass(slots=True)
class Link:
    """One client's connection and the one to the server for it."""

    proxy: Proxy
    door: str
    number: int
    framing: Framing
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    silent: bool = False
    exchanges: int = 0
    pending: deque[tuple[Exchange, Fault | None]] = field(default_factory=deque)
    kept: bytes = b""
    rows: int = 0

    async def serve(self) -> None:
        """Pass on until one side ends, or a fault says otherwise."""
        requests = asyncio.create_task(self._requests())
        answers = asyncio.create_task(self._answers())
        try:
            done, _ = await asyncio.wait({requests, answers}, return_when=asyncio.FIRST_COMPLETED)
            if self.silent and requests not in done:
                await requests
            for task in done:
                task.result()
        except (Reset, ConnectionError):
            self._reset()
        finally:
            for task in (requests, answers):
                task.cancel()
            await asyncio.gather(requests, answers, return_exceptions=True)
            for _, writer in (self.client, self.server):
                writer.close()

    async def _requests(self) -> None:
        reader, writer = self.client
        while data := await reader.read(CHUNK):
            if self.silent:
                continue
            for piece in self.framing.sent(data):
                if isinstance(piece, bytes):
                    writer.write(piece)
                else:
                    await self._request(piece)

    async def _request(self, piece: Sent) -> None:
        fault = None
        if piece.text is not None and not self.silent:
            self.exchanges += 1
            client, number = self.framing.client, self.exchanges
            exchange = Exchange(self.door, self.number, client, number, piece.text)
            fault = self.proxy.decide(exchange)
            if fault is not None and fault.side is Side.REQUEST:
                await self._strike(exchange, fault, piece.data, self.server[1])
                fault = None
            self.pending.append((exchange, fault))
        await self._pass(piece.data, self.server[1])

    async def _answers(self) -> None:
        while data := await self.server[0].read(CHUNK):
            for piece in self.framing.answered(data):
                await self._answer(piece)

    async def _answer(self, piece: Answered) -> None:
        exchange, fault = self.pending[0] if self.pending else (None, None)
        if exchange is None or fault is None:
            await self._pass(piece.data, self.client[1])
        else:
            self.kept += piece.data
            self.rows += piece.rows
            if piece.ends:
                answer, rows = self.kept, self.rows
                self.kept, self.rows = b"", 0
                await self._strike(exchange, fault, answer, self.client[1], rows)
                await self._pass(answer, self.client[1])
        if piece.ends and self.pending:
            self.pending.popleft()

    async def _pass(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        if not self.silent:
            writer.write(data)
            await writer.drain()

    async def _strike(
        self, exchange: Exchange, fault: Fault, data: bytes, to: asyncio.StreamWriter, rows: int = 0
    ) -> None:
        self.proxy.struck.append(Struck(exchange, fault, time.time(), rows))
        match fault.way:
            case Way.DELAY:
                await asyncio.sleep(fault.seconds)
            case Way.SILENCE:
                self.silent = True
            case Way.RESET | Way.HALF:
                count = len(data) // 2 if fault.way is Way.HALF else fault.after_bytes
                await self._pass(data[:count], to)
                raise Reset

    def _reset(self) -> None:
        for _, writer in (self.client, self.server):
            raw = writer.get_extra_info("socket")
            if raw.family != socket.AF_UNIX:
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            writer.transport.abort()


class Proxy:
    """Runs on a thread of its own: ``with Proxy(...) as proxy: port = proxy.open("a name")``.

    ``server`` is a path (a Unix socket) or a host and a port. ``struck`` lists what has happened;
    ``decide`` may be replaced at any time, and is called on the proxy's thread.
    """

    def __init__(
        self,
        server: str | tuple[str, int],
        framing: Callable[[], Framing],
        decide: Decide = lambda _: None,
    ) -> None:
        self.decide = decide
        self.struck: list[Struck] = []
        self._server = server
        self._framing = framing
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._listeners: list[asyncio.Server] = []
        self._links: dict[asyncio.Task[None], Link] = {}
        self._count = 0

    def open(self, door: str = "") -> int:
        """Listen on one more port of 127.0.0.1, and return it."""
        return self._run(self._open(door))

    def cut(self, door: str | None = None) -> int:
        """Reset all connections (of one door), busy or idle; returns how many there were."""
        return self._run(self._cut(door))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)

    async def _open(self, door: str) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(door, reader, writer)

        listener = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._listeners.append(listener)
        return int(listener.sockets[0].getsockname()[1])

    async def _accept(
        self, door: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._count += 1
        number = self._count
        try:
            server = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        link = Link(self, door, number, self._framing(), (reader, writer), server)
        task = asyncio.create_task(link.serve())
        self._links[task] = link
        task.add_done_callback(self._links.pop)
        await asyncio.wait({task})

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, str):
            return await asyncio.open_unix_connection(self._server)
        return await asyncio.open_connection(*self._server)

    async def _cut(self, door: str | None) -> int:
        chosen = [link for link in self._links.values() if door in {None, link.door}]
        for link in chosen:
            link._reset()
        return len(chosen)

    async def _close(self) -> None:
        for listener in self._listeners:
            listener.close()
        tasks = list(self._links)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Let transports finish closing, or they complain of their loop.
        await asyncio.sleep(0)


def postgres_proxy(database_url: str, decide: Decide = lambda _: None) -> Proxy:
    """A proxy in front of the server of a URL, by Unix socket or TCP."""
    parts = conninfo_to_dict(database_url)
    host, port = str(parts.get("host") or "localhost"), int(parts.get("port") or 5432)
    server = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
    return Proxy(server, PostgresFraming, decide)


def through(database_url: str, port: int) -> str:
    """The same database, reached through a door of a proxy."""
    parts = conninfo_to_dict(database_url)
    user, password = str(parts.get("user") or ""), parts.get("password")
    who = f"{user}:{password}" if password else user
    return f"postgresql://{who}@127.0.0.1:{port}/{parts.get('dbname') or ''}?sslmode=disable"


def http_proxy(url: str, decide: Decide = lambda _: None) -> Proxy:
    """A proxy in front of an HTTP server."""
    host, _, port = url.removeprefix("http://").partition(":")
    return Proxy((host, int(port)), HttpFraming, decide)
