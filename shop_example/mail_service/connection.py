"""One client connection: HTTP/1.1 in, and answers out, well-behaved or not.

h11 reads the requests, a fresh parser for each; answers are written by hand, since a fault may cut
one at any byte. Requests on one connection are answered one after the other, pipelined ones too.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Coroutine
from ipaddress import ip_address
from typing import Protocol, cast

import h11

from shop_example.mail_service import wire
from shop_example.mail_service.answer import Answer, Header, error, too_large
from shop_example.mail_service.events import Closed, Cut, Event, Malformed
from shop_example.mail_service.exchange import Reply, Request
from shop_example.mail_service.faults import Manner

# 40 MB an e-mail, attachments included after their base64 encoding
# (https://resend.com/docs/api-reference/emails/send-email).
MAX_BODY_BYTES = 40 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
# Further requests that may wait while one is answered; then the client has to wait as well.
MAX_WAITING_BYTES = 256 * 1024
# How long a client that was refused unread may go on sending before the connection is cut:
# closing at once would reset it, and the refusal would be lost on the way.
LINGER_SECONDS = 2.0
# Between half an answer and the reset that follows it, so that the half is read.
MIDWAY_SECONDS = 0.05

_LENGTH = b"content-length"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Handler(Protocol):
    """Whoever answers a connection's requests and takes note of what happens to it."""

    async def respond(self, request: Request) -> Reply:
        """The reply to a whole request."""

    async def refuse(self, request: Request, refusal: Answer, body_bytes: int) -> Reply:
        """The reply to a request that is refused unread."""

    def note(self, event: Event) -> None:
        """Takes note of an event."""

    def forget(self, connection: Connection) -> None:
        """The connection is gone, and nothing of it is in progress."""


class Connection(asyncio.Protocol):
    """Reads requests, has them answered, and lets the replies go in the manner they say."""

    _transport: asyncio.Transport
    _head: h11.Request
    _headers: tuple[Header, ...]

    def __init__(self, handler: Handler, number: int) -> None:
        self._handler = handler
        self._number = number
        self._local = False
        self._h11 = _parser()
        self._reading = False
        self._body = bytearray()
        self._waiting_bytes = 0
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deaf = False
        self._leaving = False
        self._client_left = False
        self._lost = False
        self._carried_requests = False
        self._answered = False
        self._closed_by = "client"

    def leave(self) -> None:
        """Ends the connection: after the answer in hand, at once when none is to come."""
        self._leaving = True
        if self._deaf:
            self._cut_off()
        elif self._task is None:
            self._close()

    def abandon(self) -> None:
        """Ends the connection whatever is in progress on it."""
        if self._task is not None:
            self._task.cancel()
        self._cut_off()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of asyncio's protocol."""
        self._transport = cast(asyncio.Transport, transport)
        self._local = _is_loopback(transport.get_extra_info("peername"))

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol."""
        if self._deaf:
            return
        self._h11.receive_data(data)
        if self._task is None:
            self._read()
            return
        self._waiting_bytes += len(data)
        if self._waiting_bytes > MAX_WAITING_BYTES:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The client sends no more; it may still be waiting for the answer in hand."""
        self._client_left = True
        if self._deaf or self._task is None:
            return False
        self._h11.receive_data(b"")
        return True

    def connection_lost(self, error: Exception | None) -> None:
        """Part of asyncio's protocol."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading or self._has_partial_head():
            self._handler.note(self._cut())
        if self._carried_requests or self._task is not None:
            reset = isinstance(error, ConnectionError)
            self._handler.note(
                Closed(time.time(), self._number, self._answered, self._closed_by, reset)
            )
        self._lost = self._client_left = self._deaf = True
        if self._task is None:
            self._handler.forget(self)

    def _read(self) -> None:
        """Takes events from the buffer until a request is whole or the buffer is empty."""
        while not self._deaf and self._task is None:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as problem:
                self._refuse_malformed(problem)
                return
            match event:
                case h11.Request():
                    self._begin(event)
                case h11.Data():
                    self._extend(event.data)
                case h11.EndOfMessage():
                    self._complete()
                case h11.ConnectionClosed():
                    self._close()
                    return
                case _:
                    return

    def _begin(self, head: h11.Request) -> None:
        self._reading, self._head, self._headers = True, head, tuple(head.headers)
        self._body.clear()
        announced = next((int(value) for name, value in self._headers if name == _LENGTH), 0)
        if announced > MAX_BODY_BYTES:
            self._refuse(announced)
        elif self._h11.they_are_waiting_for_100_continue:
            self._transport.write(wire.CONTINUE)

    def _extend(self, data: bytes) -> None:
        self._body += data
        if len(self._body) > MAX_BODY_BYTES:
            self._refuse(len(self._body))

    def _complete(self) -> None:
        self._reading = False
        self._start(self._serve(self._request(bytes(self._body))))

    def _refuse(self, body_bytes: int) -> None:
        self._reading, self._deaf = False, True
        refusal = too_large(MAX_BODY_BYTES)
        self._start(self._serve_refusal(self._request(b""), refusal, body_bytes))

    def _refuse_malformed(self, problem: h11.RemoteProtocolError) -> None:
        if self._client_left:
            self._close()
            return
        self._reading, self._deaf = False, True
        self._handler.note(Malformed(time.time(), self._number, str(problem)))
        self._say_last(error(problem.error_status_hint, "invalid_request", f"{problem}."))

    def _start(self, story: Coroutine[None, None, None]) -> None:
        self._answered = False
        self._task = asyncio.get_running_loop().create_task(self._guarded(story))

    async def _guarded(self, story: Coroutine[None, None, None]) -> None:
        """A story that fails ends its connection; asyncio prints the error."""
        try:
            await story
        except BaseException:
            self._concluded(None)
            self._cut_off()
            raise

    async def _serve(self, request: Request) -> None:
        reply = await self._handler.respond(request)
        if self._concluded(reply):
            self._deliver(reply)

    async def _serve_refusal(self, request: Request, refusal: Answer, body_bytes: int) -> None:
        reply = await self._handler.refuse(request, refusal, body_bytes)
        if self._concluded(reply) and reply.answer is not None:
            self._say_last(reply.answer)

    async def _drip(self, answer: Answer, pace_seconds: float) -> None:
        self._transport.write(wire.head_of(answer, close=True))
        for byte in answer.body:
            await asyncio.sleep(pace_seconds)
            if self._lost:
                break
            self._transport.write(bytes((byte,)))
        if self._concluded(None):
            self._answered = True
            self._close()

    def _concluded(self, reply: Reply | None) -> bool:
        """Ends the story in hand; False when the client went away in the meantime."""
        self._task = None
        if reply is not None and reply.seq is not None:
            self._carried_requests = True
        if self._lost:
            self._handler.forget(self)
        return not self._lost

    def _deliver(self, reply: Reply) -> None:
        answer = reply.answer
        self._deaf = reply.manner not in (Manner.ANSWER, Manner.LATE)
        match reply.manner:
            case Manner.STALL | Manner.DRIP if self._leaving:
                self._cut_off()
            case Manner.STALL:
                pass
            case Manner.RESET:
                self._reset()
            case _ if answer is None or reply.manner is Manner.CLOSE:
                self._close()
            case Manner.HALF_STATUS:
                self._close(wire.whole(answer, close=True)[:10])
            case Manner.TRUNCATE:
                self._close(wire.truncated(answer))
            case Manner.RESET_MIDWAY:
                self._transport.write(wire.half(answer))
                self._after(MIDWAY_SECONDS, self._reset)
            case Manner.DRIP:
                self._start(self._drip(answer, reply.pace_seconds))
            case _:
                self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        """The honest way, after which the next request may come."""
        stays = self._h11.their_state is h11.DONE and not self._leaving
        without_body = self._head.method == b"HEAD"
        self._transport.write(wire.whole(answer, close=not stays, without_body=without_body))
        self._answered = not self._client_left
        if stays:
            self._next()
        else:
            self._close()

    def _next(self) -> None:
        """Goes on with what the client has sent in the meantime."""
        waiting, ended = self._h11.trailing_data
        self._h11 = _parser()
        if waiting:
            self._h11.receive_data(waiting)
        if ended:
            self._h11.receive_data(b"")
        self._waiting_bytes = 0
        self._transport.resume_reading()
        self._read()

    def _say_last(self, answer: Answer) -> None:
        """A refusal whose client may still be sending what nobody will read."""
        self._closed_by = "service"
        self._answered = not self._client_left
        self._transport.write(wire.whole(answer, close=True))
        self._transport.write_eof()
        self._after(LINGER_SECONDS, self._cut_off)

    def _close(self, last_bytes: bytes = b"") -> None:
        if not self._client_left:
            self._closed_by = "service"
        if last_bytes:
            self._transport.write(last_bytes)
        self._transport.close()

    def _reset(self) -> None:
        if not self._lost:
            peer: socket.socket = self._transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            self._cut_off()

    def _cut_off(self) -> None:
        if not self._lost:
            self._closed_by = "service"
            self._transport.abort()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, act)

    def _request(self, body: bytes) -> Request:
        method, target = self._head.method.decode(), self._head.target.decode("latin-1")
        path, _, query = target.partition("?")
        return Request(self._number, self._local, method, path, query, self._headers, body)

    def _cut(self) -> Cut:
        at, request = time.time(), self._request(b"") if self._reading else None
        if request is None:
            return Cut(at, self._number, path=None, key=None, body_bytes=0)
        key = request.header(b"idempotency-key")
        return Cut(at, self._number, request.path, key, len(self._body))

    def _has_partial_head(self) -> bool:
        unread = self._task is None and not self._deaf and self._h11.trailing_data[0]
        return bool(unread)


def _parser() -> h11.Connection:
    return h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)


def _is_loopback(peer: object) -> bool:
    """Whether a socket's peer name is on this machine; a mapped IPv4 address counts as IPv4."""
    if not isinstance(peer, tuple):
        return False
    address = ip_address(peer[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
