"""The server: a listening socket, its connections, and who answers which path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType

from shop_example.mail_service.answer import NOT_FOUND, Answer, method_not_allowed
from shop_example.mail_service.connection import Connection
from shop_example.mail_service.control import FORBIDDEN, PREFIX, ControlPlane
from shop_example.mail_service.events import Event
from shop_example.mail_service.exchange import Reply, Request
from shop_example.mail_service.faults import Manner
from shop_example.mail_service.record import RecordError
from shop_example.mail_service.record_book import RecordBook
from shop_example.mail_service.service import MailService
from shop_example.mail_service.settings import Settings

_BACKLOG = 1024
# How long a stop waits for answers in hand.
GRACE_SECONDS = 5.0


class MailServer:
    """A running mail-service: ``async with MailServer(settings) as server: server.url``.

    Raises RecordError when the record can't be used, OSError when the port can't be bound.
    ``failed`` is done, with the error, once the record can't be written any more: from then on no
    request is answered.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._book = RecordBook(settings)
        self._service = MailService(settings, self._book)
        self._control = ControlPlane(self._service)
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> MailServer:
        """Begins to listen."""
        loop, settings = asyncio.get_running_loop(), self._settings
        try:
            self._listener = await loop.create_server(
                self._connect, settings.host, settings.port, backlog=_BACKLOG
            )
        except BaseException:
            await self._book.close()
            raise
        self._book.open()
        self._service.note_faults()
        try:
            await self._book.synced()
        except RecordError:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops listening, lets answers in hand go out, and closes the record."""
        self._listener.close()
        await self._dismiss(Connection.leave, GRACE_SECONDS)
        await self._dismiss(Connection.abandon, GRACE_SECONDS)
        await self._book.close()

    @property
    def url(self) -> str:
        """The address that it listens on, for EMAIL_API_URL."""
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def respond(self, request: Request) -> Reply:
        """Finds out who answers, and never answers without the record."""
        try:
            return await self._route(request)
        except RecordError as error:
            self._fail(error)
            return Reply(None, Manner.CLOSE)

    async def refuse(self, request: Request, refusal: Answer, body_bytes: int) -> Reply:
        """Has a request noted that is refused unread."""
        try:
            return await self._service.refuse(request, refusal, body_bytes)
        except RecordError as error:
            self._fail(error)
            return Reply(None, Manner.CLOSE)

    def note(self, event: Event) -> None:
        """Queues a connection's event for the record."""
        self._book.note(event)

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    def _connect(self) -> Connection:
        connection = Connection(self, self._book.next_connection())
        self._connections.add(connection)
        self._empty.clear()
        return connection

    async def _dismiss(self, end: Callable[[Connection], None], seconds: float) -> None:
        for connection in tuple(self._connections):
            end(connection)
        if self._connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), seconds)

    async def _route(self, request: Request) -> Reply:
        path = request.path
        if path == PREFIX or path.startswith(PREFIX + "/"):
            return Reply(await self._control.answer(request) if request.local else FORBIDDEN)
        if path == "/emails" and request.method == "POST":
            return await self._service.post_email(request)
        if path.startswith("/emails/") and request.method == "GET":
            return self._service.get_email(request, path.removeprefix("/emails/"))
        refusal = method_not_allowed(b"POST") if path == "/emails" else NOT_FOUND
        return await self._service.refuse(request, refusal, len(request.body))

    def _fail(self, error: RecordError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)
