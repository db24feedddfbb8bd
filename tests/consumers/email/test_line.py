"""The connection that ships: what is kept, what is not, and what is no answer to which request."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohappyeyeballs import start_connection

from consumers.email import line as line_module
from consumers.email import transport as transport_module
from consumers.email.line import Line, Wire
from consumers.email.transport import Received, Transport
from outbox.outcome import Answer, Meaning
from tests.consumers.email.conftest import Call, MakeGateway, Serve, two_calls
from tests.consumers.email.servers import ACCEPTED, MESSAGE_ID, http, says, silence
from tests.waiting import aeventually

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter
#: For localhost and 127.0.0.1, signed by itself; of no use anywhere else.
CERTIFICATE = Path(__file__).parent / "localhost.pem"
CHUNKED = (
    b"HTTP/1.1 200 Said\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'9\r\n{"id":"49\r\n24\r\na3999c-0ce1-4ea6-ab68-afcd6dc2e794"}\r\n0\r\n\r\n'
)
OTHER = ACCEPTED.replace(MESSAGE_ID.encode(), MESSAGE_ID.replace("4", "5").encode())


# -- answers to nothing --------------------------------------------------------------------------


async def test_a_second_answer_in_one_breath_answers_no_later_request(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """Two answers to one request: the second is dropped with its connection."""
    server = await serve(says(ACCEPTED + OTHER, ACCEPTED))
    answers = await two_calls(make_gateway, server.url)
    assert [answer.message_id for answer in answers] == [MESSAGE_ID] * 2
    assert (len(server.requests), server.connections) == (2, 2)


@pytest.mark.parametrize("heard", [False, True], ids=["in the socket", "in the loop"])
async def test_an_answer_to_nobody_answers_no_later_request(
    make_gateway: MakeGateway, serve: Serve, heard: bool
) -> None:
    """It comes while the connection is at rest: the next request goes over another one."""
    first: list[Writer] = []
    ends: list[Reader] = []

    async def answers(reader: Reader, writer: Writer, request: bytes) -> None:
        first.append(writer)
        ends.append(reader)
        await says(ACCEPTED)(reader, writer, request)

    server = await serve(answers)
    gateway = make_gateway(api_url=server.url)

    async def call() -> str | None:
        answer = await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)
        return answer.message_id

    assert await call() == MESSAGE_ID
    first[0].write(OTHER)
    await first[0].drain()
    if heard:
        await aeventually(partial(_ended, ends[0]))
    assert await call() == MESSAGE_ID
    assert server.connections == 2


def connects_slowly(monkeypatch: pytest.MonkeyPatch, until: Callable[[Wire], bool]) -> None:
    """Let a connection stand until this is so, before anything is sent over it."""
    connect = Line.connect

    async def slowly(line: Line, url: httpx.URL) -> Wire:
        wire = await connect(line, url)

        async def heard() -> bool:
            return until(wire)

        await aeventually(heard)
        return wire

    monkeypatch.setattr(Line, "connect", slowly)


async def test_an_answer_before_the_request_is_none(
    call: Call, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that says 200 to whoever connects gets no request."""

    async def greet(reader: Reader, writer: Writer, _: bytes) -> None:
        writer.write(ACCEPTED)
        assert await reader.read() == b""

    connects_slowly(monkeypatch, lambda wire: bool(wire._http.trailing_data[0]))
    server = await serve(greet, reads_requests=False)
    answer = await call(server.url)
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")


async def test_a_server_that_closes_at_once_is_not_reached(
    call: Call, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A balancer with nobody behind it: the close is seen before a byte is written."""

    async def close(_: Reader, writer: Writer, __: bytes) -> None:
        writer.close()

    connects_slowly(monkeypatch, lambda wire: wire._is_gone or wire._has_something_to_read)
    server = await serve(close, reads_requests=False)
    answer = await call(server.url)
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")


async def test_informational_answers_without_end_end_the_call(call: Call, serve: Serve) -> None:
    """Not at the deadline."""

    async def endless(_: Reader, writer: Writer, __: bytes) -> None:
        while True:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
            await writer.drain()

    server = await serve(endless)
    answer = await call(server.url, deadline_seconds=60)
    assert (answer.meaning, answer.reason) == (Meaning.FAILED, "remote_protocol_error")


async def test_a_head_without_end_is_no_answer(call: Call, serve: Serve) -> None:
    """More of it than any provider sends ends the call, not the memory."""

    async def endless(_: Reader, writer: Writer, __: bytes) -> None:
        writer.write(b"HTTP/1.1 200 Said\r\n")
        while True:
            writer.write(b"X: " + b"x" * 1000 + b"\r\n")
            await writer.drain()

    server = await serve(endless)
    answer = await call(server.url, deadline_seconds=60)
    assert (answer.meaning, answer.reason) == (Meaning.FAILED, "remote_protocol_error")


async def _ended(reader: Reader) -> bool:
    return reader.at_eof() or reader.exception() is not None


# -- how long an answer is -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED,
        b"HTTP/1.1 200 Said\r\nConnection: close\r\n\r\n" + ACCEPTED.partition(b"\r\n\r\n")[2],
        b"HTTP/1.0 200 Said\r\n\r\n" + ACCEPTED.partition(b"\r\n\r\n")[2],
    ],
    ids=["chunked", "until it closes", "HTTP 1.0"],
)
async def test_each_way_to_say_its_length_is_read(call: Call, serve: Serve, answer: bytes) -> None:
    """Chunks, or the end of the connection."""
    closes = b"chunked" not in answer
    server = await serve(says(answer, then_close=closes))
    assert (await call(server.url)).message_id == MESSAGE_ID


async def test_an_answer_in_single_bytes_is_read(call: Call, serve: Serve) -> None:
    """Each in a packet of its own."""

    async def drip(_: Reader, writer: Writer, __: bytes) -> None:
        for byte in ACCEPTED:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    server = await serve(drip)
    assert (await call(server.url)).message_id == MESSAGE_ID


async def test_an_answer_that_comes_before_the_body_was_read_counts(
    call: Call, serve: Serve
) -> None:
    """A server may refuse a large request by its head, and close."""

    async def refuse(reader: Reader, writer: Writer, _: bytes) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(422, b'{"name":"validation_error"}'))
        await writer.drain()
        while await reader.read(2**16):
            pass

    server = await serve(refuse, reads_requests=False)
    assert (await call(server.url, body=bytes(2**20))).meaning is Meaning.REFUSED


# -- connections ---------------------------------------------------------------------------------


async def test_a_connection_that_rested_for_long_is_not_used_again(
    make_gateway: MakeGateway, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server may be about to close it."""
    monkeypatch.setattr(line_module, "KEEPALIVE_SECONDS", 0.0)
    server = await serve(says(ACCEPTED))
    answers = await two_calls(make_gateway, server.url)
    assert [answer.meaning for answer in answers] == [Meaning.ACCEPTED] * 2
    assert server.connections == 2


async def test_a_server_that_says_close_is_believed(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """Also where it leaves the connection open."""
    server = await serve(says(ACCEPTED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)))
    answers = await two_calls(make_gateway, server.url)
    assert [answer.meaning for answer in answers] == [Meaning.ACCEPTED] * 2
    assert server.connections == 2


async def test_a_connection_to_one_server_serves_no_other(serve: Serve) -> None:
    """The same transport, another port."""
    servers = [await serve(says(ACCEPTED)) for _ in range(2)]
    transport = Transport()
    for server in servers:
        came = await transport.post(server.url, {}, b"", deadline_seconds=5, may_start=lambda: True)
        assert isinstance(came, Received)
    await transport.close()
    assert [len(server.requests) for server in servers] == [1, 1]


async def test_a_connection_that_is_not_kept_is_closed_at_once(call: Call, serve: Serve) -> None:
    """After a whole answer, too: what the server says then fills no memory."""
    ended = asyncio.Event()

    async def endless(_: Reader, writer: Writer, __: bytes) -> None:
        writer.write(ACCEPTED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        try:
            while True:
                writer.write(bytes(2**16))
                await writer.drain()
        finally:
            ended.set()

    server = await serve(endless)
    assert (await call(server.url)).meaning is Meaning.ACCEPTED
    await asyncio.wait_for(ended.wait(), 10)


async def test_a_connection_with_a_request_still_under_way_is_not_kept(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """A server that answers early might read the rest of the body as the next request."""

    async def early(reader: Reader, writer: Writer, _: bytes) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http(422, b'{"name":"validation_error"}'))
        await asyncio.get_running_loop().create_future()

    server = await serve(early, reads_requests=False)
    gateway = make_gateway(api_url=server.url)
    for _ in range(2):
        answer = await gateway.call(
            "k", bytes(16 * 2**20), deadline_seconds=10, may_start=lambda: True
        )
        assert answer.meaning is Meaning.REFUSED
    assert server.connections == 2


# -- cancelled while it connects -----------------------------------------------------------------


async def test_a_cancellation_that_the_race_of_addresses_swallows_counts(
    call: Call, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aiohappyeyeballs takes it for that of a loser."""

    async def swallowing(*arguments: Any, **named: Any) -> socket.socket:
        reached = await start_connection(*arguments, **named)
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        return reached

    monkeypatch.setattr(line_module, "start_connection", swallowing)
    server = await serve(silence)
    task = asyncio.ensure_future(call(server.url, deadline_seconds=30))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    assert server.requests == []


async def test_a_cancellation_as_the_handshake_ends_leaves_nothing_behind(
    make_gateway: MakeGateway, tls_port: int, monkeypatch: pytest.MonkeyPatch, trusted: None
) -> None:
    """Neither a transport on a descriptor that is somebody else's by then, nor a connection."""
    made = Wire.connection_made

    def cancelling(wire: Wire, transport: asyncio.BaseTransport) -> None:
        made(wire, transport)
        asyncio.get_running_loop().call_soon(task.cancel)

    gateway = make_gateway(api_url=f"https://localhost:{tls_port}")

    async def call() -> Answer:
        return await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)

    with monkeypatch.context() as patched:
        patched.setattr(Wire, "connection_made", cancelling)
        for _ in range(3):
            task = asyncio.create_task(call())
            with pytest.raises(asyncio.CancelledError):
                await task
    answers = await asyncio.gather(*[call() for _ in range(5)])
    assert {answer.meaning for answer in answers} == {Meaning.ACCEPTED}


async def test_a_socket_that_cant_be_closed_hides_no_cancellation(
    call: Call, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions of uvloop have closed its descriptor by then."""

    class Gone(socket.socket):
        def close(self) -> None:
            super().close()
            raise OSError(errno.EBADF, "Bad file descriptor")

    async def connected(*arguments: Any, **named: Any) -> socket.socket:
        asyncio.get_running_loop().call_soon(task.cancel)
        return Gone(fileno=(await start_connection(*arguments, **named)).detach())

    monkeypatch.setattr(line_module, "start_connection", connected)
    server = await serve(silence)
    task = asyncio.ensure_future(call(server.url, deadline_seconds=30))
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)


@pytest.mark.parametrize("first", ["refuses", "is silent"])
async def test_the_next_address_of_a_host_is_tried(
    call: Call,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    full_backlog: int,
    first: str,
) -> None:
    """Where the first refuses, and where it is silent, which costs a quarter of a second only."""
    server = await serve(says(ACCEPTED))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        refuses = closed.getsockname()

    async def addresses(*_: object, **__: object) -> list[Any]:
        bad = refuses if first == "refuses" else ("127.0.0.1", full_backlog)
        kind = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(*kind, bad), (*kind, ("127.0.0.1", server.port))]

    monkeypatch.setattr(line_module, "_addresses", addresses)
    answer = await call(f"http://localhost:{server.port}")
    assert answer.meaning is Meaning.ACCEPTED
    assert (len(server.requests), server.connections) == (1, 1)


# -- TLS -----------------------------------------------------------------------------------------


@pytest.fixture
async def tls_port() -> Any:
    """A server with a certificate that nobody has signed."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)

    async def serve(reader: Reader, writer: Writer) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await reader.readexactly(2)
                writer.write(ACCEPTED)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """That certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    transport_module.certificates.cache_clear()
    yield
    transport_module.certificates.cache_clear()


async def test_two_calls_share_a_tls_connection(
    make_gateway: MakeGateway, tls_port: int, trusted: None
) -> None:
    """With a certificate that is trusted (SSL_CERT_FILE)."""
    answers = await two_calls(make_gateway, f"https://localhost:{tls_port}")
    assert [answer.message_id for answer in answers] == [MESSAGE_ID] * 2


async def test_a_certificate_that_nobody_trusts_is_never_sent_anything(
    call: Call, tls_port: int
) -> None:
    """The real handshake fails before a byte of the request."""
    answer = await call(f"https://localhost:{tls_port}", body=b"{}")
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")
    assert answer.detail is not None
    assert "certificate" in answer.detail.lower()


async def test_a_certificate_of_another_name_is_never_sent_anything(
    call: Call, tls_port: int, trusted: None
) -> None:
    """Trusted, but not for this host."""
    answer = await call(f"https://127.0.0.2:{tls_port}", body=b"{}")
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")


async def test_certificates_that_cant_be_read_reach_nobody(
    call: Call, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And are in the way of no plain connection."""
    monkeypatch.setenv("SSL_CERT_FILE", "/nonexistent")
    transport_module.certificates.cache_clear()
    server = await serve(says(ACCEPTED))
    answer = await call(f"https://localhost:{server.port}")
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")
    assert (await call(server.url)).meaning is Meaning.ACCEPTED
    transport_module.certificates.cache_clear()
