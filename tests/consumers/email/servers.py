"""Small TCP servers that play a provider, byte by byte."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

Answers = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


@dataclass
class Server:
    """Reads whole requests and leaves each answer to ``answers``; counts what arrives."""

    answers: Answers
    reads_requests: bool = True
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0
    #: Set whenever a connection was opened or a request has arrived.
    arrival: asyncio.Event = field(default_factory=asyncio.Event)
    port: int = 0
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> Self:
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._server = await asyncio.start_server(self._connected, sock=listening, limit=2**16)
        self.port = listening.getsockname()[1]
        return self

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.arrival.set()
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if not self.reads_requests:
                await self.answers(reader, writer, b"")
            while not writer.is_closing() and (request := await _request(reader)) is not None:
                self.requests.append(request)
                self.arrival.set()
                await self.answers(reader, writer, request)
        except ConnectionError:
            return
        finally:
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = 0
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    return head + await reader.readexactly(length)


def http(status: int, body: bytes = b"", **headers: str) -> bytes:
    """A whole HTTP answer."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(*answers: bytes, then_close: bool = False) -> Answers:
    """Answers the requests of all connections with these bytes in turn, the last one for ever."""
    left = list(answers)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: bytes) -> None:
        writer.write(left.pop(0) if len(left) > 1 else left[0])
        await writer.drain()
        if then_close:
            writer.close()

    return answer


def reset(writer: asyncio.StreamWriter) -> None:
    """Cut a connection with a TCP reset."""
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def silence(_: asyncio.StreamReader, __: asyncio.StreamWriter, ___: bytes) -> None:
    """Never answer."""
    await asyncio.get_running_loop().create_future()


ACCEPTED = http(
    200, b'{"id":"49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"}', Content_Type="application/json"
)
MESSAGE_ID = "49a3999c-0ce1-4ea6-ab68-afcd6dc2e794"
