"""A minimal e-mail provider in a process of its own: it answers Resend's shape, counts, delivers
nothing. It is as fast as Python's event loop allows, so that it limits nobody.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection as Link
from typing import cast

from benchmarks.crew import Worker, listening, run
from outbox.clock import boot_seconds

_KEY = b"idempotency-key:"
_LENGTH = b"content-length:"


class Provider:
    """The parent's view of the provider's process."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.url: str = worker.receive()

    def arrivals(self) -> list[tuple[str, float]]:
        """Key and moment (boot clock) of each request since the last look."""
        self._worker.tell("arrivals")
        found: list[tuple[str, float]] = self._worker.receive()
        return found

    def requests(self, expected: int) -> int:
        """Count the requests since the last look; each key must have come once."""
        keys = Counter(key for key, _ in self.arrivals())
        assert len(keys) == expected, f"{len(keys)} keys of {expected} arrived"
        return keys.total()


@contextmanager
def provider() -> Iterator[Provider]:
    """A provider on a free port of the loopback."""
    worker = Worker(_serve)
    try:
        yield Provider(worker)
    finally:
        worker.end()


def _serve(link: Link) -> None:
    run(_serving(link))


async def _serving(link: Link) -> None:
    arrivals: list[tuple[str, float]] = []
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Exchange(arrivals), "127.0.0.1", 0)

    def answer() -> list[tuple[str, float]]:
        came = arrivals.copy()
        arrivals.clear()
        return came

    with listening(link, answer) as gone:
        link.send("ready")
        link.send(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await gone.wait()
    server.close()


class _Exchange(asyncio.Protocol):
    """One connection. Requests have a Content-Length: those of httpx do."""

    def __init__(self, arrivals: list[tuple[str, float]]) -> None:
        self._arrivals = arrivals
        self._came = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        while (end := self._came.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._came[:end])
            size = end + 4 + int(_field(head, _LENGTH) or 0)
            if len(self._came) < size:
                return
            del self._came[:size]
            key = _field(head, _KEY).decode()
            self._arrivals.append((key, boot_seconds()))
            body = b'{"id":"id-%s"}' % key.encode()
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
                % (len(body), body)
            )


def _field(head: bytes, name: bytes) -> bytes:
    start = head.lower().find(b"\r\n" + name)
    if start < 0:
        return b""
    start += 2 + len(name)
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()
