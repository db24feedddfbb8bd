"""A client for tests of the mail-service that sees the very bytes, and what surrounds it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from shop_example.mail_service.events import Event
from shop_example.mail_service.record import Tally, read_record
from shop_example.mail_service.server import MailServer
from shop_example.mail_service.settings import Settings
from tests.waiting import aeventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TIMEOUT_SECONDS = 10

E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer as the client got it; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        values = json.loads(self.body)
        assert isinstance(values, dict)
        return values

    @property
    def name(self) -> str | None:
        """The error's name."""
        name: str | None = self.json.get("name")
        return name


class Client:
    """One connection to a mail-service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, url: str) -> Client:
        """Connects to the service at ``url``."""
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.vanish()

    async def vanish(self) -> None:
        """Drops the connection, as a killed process does."""
        self.writer.transport.abort()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.writer.write(data)

    async def post(
        self, mail: object = None, key: str | None = None, token: str = "re_test"
    ) -> Seen:
        """Posts a mail and reads the answer."""
        self.send(request(email() if mail is None else mail, key, token))
        return await self.answer()

    async def call(self, method: str, path: str, values: object = None) -> Seen:
        """Any other request with a JSON body, and its answer."""
        body = b"" if values is None else json.dumps(values).encode()
        head = f"{method} {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer re_test\r\n"
        self.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return await self.answer()

    async def answer(self) -> Seen:
        """The next answer; IncompleteReadError or ConnectionResetError when it is cut."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            head = await self.reader.readuntil(b"\r\n\r\n")
            status_line, *lines = head.decode().split("\r\n")[:-2]
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Seen(int(status_line.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Everything until the service closes; ConnectionResetError when it resets."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            return await self.reader.read()


def email(**changes: object) -> dict[str, object]:
    """A mail that the service accepts, with some fields changed (None: left out)."""
    values: dict[str, object] = {
        "from": "Corner Shop <orders@shop.example>",
        "to": ["ada@example.com"],
        "subject": "Your order 7",
        "text": "Thank you.",
        "html": "<p>Thank you.</p>",
    }
    values.update({name.rstrip("_"): value for name, value in changes.items()})
    return {name: value for name, value in values.items() if value is not None}


def request(mail: object, key: str | None = None, token: str = "re_test") -> bytes:
    """The bytes of ``POST /emails``; ``mail`` may be bytes."""
    body = mail if isinstance(mail, bytes) else json.dumps(mail).encode()
    lines = ["POST /emails HTTP/1.1", "Host: test", "Content-Type: application/json"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def serving(record: Path, **settings: Any) -> MailServer:
    """A mail-service on a free port in this very process, to be entered."""
    return MailServer(Settings(record=record, port=0, **settings))


async def post(url: str, mail: object = None, key: str | None = None) -> Seen:
    """Posts one mail on a connection of its own."""
    async with await Client.connect(url) as client:
        return await client.post(mail, key)


async def control(url: str, method: str, path: str, values: object = None) -> Seen:
    """One request to the control plane."""
    async with await Client.connect(url) as client:
        return await client.call(method, f"/_control{path}", values)


def events(record: Path, kind: type[E]) -> list[E]:
    """The events of one kind in a record."""
    return [event for event in read_record(record) if isinstance(event, kind)]


async def recorded(record: Path, kind: type[E], count: int = 1) -> list[E]:
    """The same, once there are at least ``count`` of them."""

    async def enough() -> list[E] | None:
        found = events(record, kind)
        return found if len(found) >= count else None

    return await aeventually(enough)


def tally(record: Path) -> Tally:
    """The counts of a record."""
    return Tally.of(read_record(record))
