"""The transport that ships against servers that misbehave: surely not sent, or maybe sent."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path

import httpx
import pytest

from consumers.email import line as line_module
from consumers.email.transport import BODY_BYTES_MAX, Broken, Received, Transport
from outbox.outcome import Meaning
from tests.consumers.email.conftest import API_KEY, Call, MakeGateway, Serve, two_calls
from tests.consumers.email.servers import (
    ACCEPTED,
    MESSAGE_ID,
    Answers,
    http,
    reset,
    says,
    silence,
)

Reader = asyncio.StreamReader
Writer = asyncio.StreamWriter

# -- surely not sent ------------------------------------------------------------------------------


async def test_an_answer_in_the_shape_of_a_success_brings_the_id(call: Call, serve: Serve) -> None:
    """The ordinary case: 200 with an id."""
    server = await serve(says(ACCEPTED))
    answer = await call(server.url)
    assert (answer.meaning, answer.message_id) == (Meaning.ACCEPTED, MESSAGE_ID)


async def test_the_request_is_the_frozen_bytes_under_the_bare_key(call: Call, serve: Serve) -> None:
    """What the ledger froze goes over the wire as it is, with the provider's headers."""
    server = await serve(says(ACCEPTED))
    await call(server.url + "/", wire_key="prod-email-order-102", body=b'{"a":"\xc3\xa9"}')
    head, _, body = server.requests[0].partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    assert lines[0] == b"post /emails http/1.1"
    assert body == b'{"a":"\xc3\xa9"}'
    assert b"idempotency-key: prod-email-order-102" in lines
    assert f"authorization: bearer {API_KEY}".lower().encode() in lines
    assert b"content-type: application/json" in lines
    assert b"accept-encoding: identity" in lines
    assert any(line.startswith(b"user-agent: outbox-effects") for line in lines)


async def test_a_host_without_an_address_is_never_reached(call: Call) -> None:
    """DNS failure: nothing was written."""
    answer = await call("http://nothing.invalid.localhost.test")
    assert answer.meaning is Meaning.UNREACHED


async def test_a_refused_connection_is_never_reached(call: Call) -> None:
    """Nobody listens: nothing was written, and the reason says so."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = await call(f"http://127.0.0.1:{port}")
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")
    assert answer.detail


async def test_a_failed_tls_handshake_is_never_reached(call: Call, serve: Serve) -> None:
    """TLS is refused by a server that speaks plain HTTP."""

    async def plain(reader: Reader, writer: Writer, _: bytes) -> None:
        await reader.read(100)
        writer.write(http(400))
        writer.close()

    server = await serve(plain, reads_requests=False)
    answer = await call(f"https://127.0.0.1:{server.port}")
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_error")


async def test_a_connect_timeout_is_never_reached(
    call: Call, full_backlog: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that drops packets: nothing was written."""
    monkeypatch.setattr(line_module, "CONNECT_SECONDS", 0.2)
    answer = await call(f"http://127.0.0.1:{full_backlog}")
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "connect_timeout")


async def test_a_deadline_that_passes_while_connecting_is_never_reached(
    call: Call, full_backlog: int
) -> None:
    """The total deadline, before a connection stands."""
    answer = await call(f"http://127.0.0.1:{full_backlog}", deadline_seconds=0.2)
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "deadline")


async def test_an_exhausted_pool_is_never_reached(make_gateway: MakeGateway) -> None:
    """PoolTimeout comes before any byte; with a client per connection only a mock raises it."""

    def exhausted(request: httpx.Request) -> httpx.Response:
        raise httpx.PoolTimeout("no connection", request=request)

    gateway = make_gateway(transport=Transport(lambda: httpx.MockTransport(exhausted)))
    answer = await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "pool_timeout")


@pytest.mark.parametrize(
    ("wire_key", "reason"),
    [
        ("email-1\r\nX: y", "local_protocol_error"),
        (" email-1", "local_protocol_error"),
        ("e-mail-ä", "unicode_encode_error"),
    ],
)
async def test_a_header_that_cant_be_written_is_never_reached(
    call: Call, serve: Serve, wire_key: str, reason: str
) -> None:
    """Line breaks, edge spaces and non-ASCII in a header are found before a byte is written."""
    server = await serve(says(ACCEPTED))
    answer = await call(server.url, wire_key=wire_key)
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, reason)
    assert server.requests == []


# -- may have been sent ---------------------------------------------------------------------------


async def test_a_server_that_never_reads_may_have_it(call: Call, serve: Serve) -> None:
    """WriteTimeout or the deadline in the middle of the body: part of it has left."""
    server = await serve(silence, reads_requests=False)
    answer = await call(server.url, body=bytes(16 * 2**20), deadline_seconds=0.5)
    assert answer.meaning is Meaning.FAILED
    assert answer.reason in {"deadline", "write_timeout"}


@pytest.mark.parametrize("start", [b"", b"HTT", b"HTTP/1.1 20"])
async def test_a_cut_status_line_may_have_been_accepted(
    call: Call, serve: Serve, start: bytes
) -> None:
    """The server closes before or within the status line."""
    server = await serve(says(start, then_close=True))
    answer = await call(server.url)
    assert (answer.meaning, answer.reason) == (Meaning.FAILED, "remote_protocol_error")
    assert start or answer.detail == "the server closed without an answer"
    assert len(server.requests) == 1


async def test_a_reset_before_the_body_was_read_may_have_been_accepted(
    call: Call, serve: Serve
) -> None:
    """It can't be told from a reset after the whole request."""

    async def cut(reader: Reader, writer: Writer, _: bytes) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reset(writer)

    server = await serve(cut, reads_requests=False)
    answer = await call(server.url, body=bytes(2**20))
    assert answer.meaning is Meaning.FAILED


async def test_a_reset_after_the_whole_request_may_have_been_accepted(
    call: Call, serve: Serve
) -> None:
    """ReadError."""

    async def cut(_: Reader, writer: Writer, __: bytes) -> None:
        reset(writer)

    server = await serve(cut)
    answer = await call(server.url)
    assert (answer.meaning, answer.reason) == (Meaning.FAILED, "read_error")
    assert len(server.requests) == 1


async def test_silence_may_mean_acceptance(call: Call, serve: Serve) -> None:
    """No answer before the deadline."""
    server = await serve(silence)
    answer = await call(server.url, deadline_seconds=0.3)
    assert (answer.meaning, answer.reason) == (Meaning.FAILED, "deadline")
    assert len(server.requests) == 1


async def test_an_answer_that_is_no_http_may_mean_acceptance(call: Call, serve: Serve) -> None:
    """Garbage instead of a status line."""
    server = await serve(says(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"))
    answer = await call(server.url)
    assert (answer.meaning, answer.reason) == (Meaning.FAILED, "remote_protocol_error")


async def test_garbage_that_echoes_the_key_brings_it_nowhere(call: Call, serve: Serve) -> None:
    """The error quotes what the server sent."""
    server = await serve(says(f"sent: {API_KEY}\r\n\r\n".encode()))
    answer = await call(server.url)
    assert answer.reason == "remote_protocol_error"
    assert answer.detail
    assert API_KEY not in answer.detail


async def test_a_switch_of_protocols_may_mean_acceptance(call: Call, serve: Serve) -> None:
    """101, which nobody asked for."""
    server = await serve(says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"))
    assert (await call(server.url)).meaning is Meaning.FAILED


# -- the status arrived ---------------------------------------------------------------------------


async def test_a_truncated_body_of_a_success_is_accepted_without_its_id(
    call: Call, serve: Serve
) -> None:
    """200, then the connection ends within the body."""
    server = await serve(says(ACCEPTED[:-20], then_close=True))
    answer = await call(server.url)
    assert (answer.meaning, answer.message_id) == (Meaning.ACCEPTED_UNREADABLE, None)


async def test_a_truncated_body_of_a_refusal_is_a_refusal(call: Call, serve: Serve) -> None:
    """422, then the connection ends within the body."""
    server = await serve(says(http(422, b'{"name":"validation_error"}')[:-5], then_close=True))
    assert (await call(server.url)).meaning is Meaning.REFUSED


@pytest.mark.parametrize("body", [b"<html>cdn</html>", b"", b"[]", b'{"id":"\xff"}', b'{"id":7}'])
async def test_a_success_of_another_shape_is_accepted_unreadable(
    call: Call, serve: Serve, body: bytes
) -> None:
    """200 with a body that isn't the provider's."""
    server = await serve(says(http(200, body)))
    assert (await call(server.url)).meaning is Meaning.ACCEPTED_UNREADABLE


async def test_a_success_that_says_gzip_and_isnt_is_accepted_unreadable(
    call: Call, serve: Serve
) -> None:
    """Content-Encoding is never trusted: nothing is unpacked."""
    server = await serve(says(http(200, b"plain bytes", Content_Encoding="gzip")))
    assert (await call(server.url)).meaning is Meaning.ACCEPTED_UNREADABLE


async def test_an_informational_answer_is_passed_over(call: Call, serve: Serve) -> None:
    """100 and 103 come before the real answer."""
    early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"
    server = await serve(says(early + ACCEPTED))
    assert (await call(server.url)).meaning is Meaning.ACCEPTED


async def test_only_the_start_of_an_endless_body_is_read(call: Call, serve: Serve) -> None:
    """A body without end ends the call at the limit, not at the deadline."""

    async def endless(_: Reader, writer: Writer, __: bytes) -> None:
        writer.write(b"HTTP/1.1 200 Said\r\nConnection: close\r\n\r\n")
        while True:
            writer.write(bytes(BODY_BYTES_MAX))
            await writer.drain()

    server = await serve(endless)
    answer = await call(server.url, deadline_seconds=60)
    assert answer.meaning is Meaning.ACCEPTED_UNREADABLE


@pytest.mark.parametrize("status", [301, 302, 303, 304, 307, 308])
async def test_a_redirect_is_never_followed(call: Call, serve: Serve, status: int) -> None:
    """Neither to the same host nor to another, which would get the API key."""
    elsewhere = await serve(says(ACCEPTED))
    server = await serve(says(http(status, Location=f"{elsewhere.url}/emails")))
    answer = await call(server.url)
    assert (answer.meaning, answer.reason) == (Meaning.MISCONFIGURED, f"http_{status}")
    assert (len(server.requests), elsewhere.connections) == (1, 0)


# -- one deadline for all of it -------------------------------------------------------------------


def _drip(start: bytes) -> Answers:
    async def drip(_: Reader, writer: Writer, __: bytes) -> None:
        writer.write(start)
        never = asyncio.get_running_loop().create_future()
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.wait([never], timeout=0.02)

    return drip


@pytest.mark.parametrize(
    ("start", "meaning"),
    [
        (b"HTTP/1.1 200 ", Meaning.FAILED),
        (b"HTTP/1.1 200 Said\r\nContent-Length: 9999\r\n\r\n", Meaning.ACCEPTED_UNREADABLE),
        (b"HTTP/1.1 503 Said\r\nContent-Length: 9999\r\n\r\n", Meaning.UNAVAILABLE),
    ],
)
async def test_a_slow_drip_ends_at_the_deadline_and_the_next_call_works(
    make_gateway: MakeGateway, serve: Serve, start: bytes, meaning: Meaning
) -> None:
    """Each byte resets httpx's own timeouts; the total one holds, and spoils nothing."""
    calls = 0

    async def answers(reader: Reader, writer: Writer, request: bytes) -> None:
        nonlocal calls
        calls += 1
        behaviour = _drip(start) if calls == 1 else says(ACCEPTED)
        await behaviour(reader, writer, request)

    server = await serve(answers)
    gateway = make_gateway(api_url=server.url)
    started = time.monotonic()
    first = await gateway.call("k", b"{}", deadline_seconds=0.4, may_start=lambda: True)
    assert time.monotonic() - started < 2
    assert first.meaning is meaning
    second = await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)
    assert second.meaning is Meaning.ACCEPTED


async def test_a_call_without_time_is_not_made(make_gateway: MakeGateway, serve: Serve) -> None:
    """A deadline that has passed already, on a new connection and on a kept one."""
    server = await serve(says(ACCEPTED))
    gateway = make_gateway(api_url=server.url)
    for made in (0, 1):
        answer = await gateway.call("k", b"{}", deadline_seconds=0, may_start=lambda: True)
        assert (answer.meaning, len(server.requests)) == (Meaning.UNREACHED, made)
        await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)


# -- the last word before the first byte ----------------------------------------------------------


async def test_nothing_is_written_when_the_caller_says_no_at_last(call: Call, serve: Serve) -> None:
    """The question is asked again once the connection stands, and no byte follows a no."""
    received = bytearray()

    async def listen(reader: Reader, _: Writer, __: bytes) -> None:
        while chunk := await reader.read(100):
            received.extend(chunk)

    server = await serve(listen, reads_requests=False)
    words = iter([True, False])
    answer = await call(server.url, may_start=lambda: next(words))
    assert (answer.meaning, answer.reason) == (Meaning.UNREACHED, "not_started")
    assert (server.connections, bytes(received)) == (1, b"")


async def test_no_connection_is_made_when_the_caller_says_no_at_first(
    call: Call, serve: Serve
) -> None:
    """A claim that is lost already costs the provider nothing."""
    server = await serve(says(ACCEPTED))
    answer = await call(server.url, may_start=lambda: False)
    assert (answer.meaning, server.connections) == (Meaning.UNREACHED, 0)


async def test_the_question_is_asked_on_a_kept_connection_too(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """Also where nothing has to be connected first."""
    server = await serve(says(ACCEPTED))
    gateway = make_gateway(api_url=server.url)
    await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)
    words = iter([True, False])
    answer = await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: next(words))
    assert answer.reason == "not_started"
    assert len(server.requests) == 1


# -- connections ----------------------------------------------------------------------------------


async def test_a_connection_is_used_again(make_gateway: MakeGateway, serve: Serve) -> None:
    """Two calls one after the other need one connection."""
    server = await serve(says(ACCEPTED))
    answers = await two_calls(make_gateway, server.url)
    assert [answer.meaning for answer in answers] == [Meaning.ACCEPTED] * 2
    assert (len(server.requests), server.connections) == (2, 1)


async def test_a_connection_that_the_server_closed_while_idle_is_replaced(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """The close is noticed before the next request is written: no duplicate, no unknown."""
    server = await serve(says(ACCEPTED, then_close=True))
    answers = await two_calls(make_gateway, server.url)
    assert [answer.meaning for answer in answers] == [Meaning.ACCEPTED] * 2
    assert (len(server.requests), server.connections) == (2, 2)


async def test_a_connection_closed_as_the_request_arrives_is_not_repeated_on_another(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """A kept connection that ends instead of answering leaves the outcome unknown: one request."""
    calls = 0

    async def answers(reader: Reader, writer: Writer, request: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            writer.close()
            return
        await says(ACCEPTED)(reader, writer, request)

    server = await serve(answers)
    first, second = await two_calls(make_gateway, server.url)
    assert (first.meaning, second.meaning) == (Meaning.ACCEPTED, Meaning.FAILED)
    assert len(server.requests) == 2


async def test_calls_at_the_same_time_have_a_connection_each(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """Twenty calls wait for no other's answer."""
    together = asyncio.Barrier(20)

    async def answers(reader: Reader, writer: Writer, request: bytes) -> None:
        await together.wait()
        await says(ACCEPTED)(reader, writer, request)

    server = await serve(answers)
    gateway = make_gateway(api_url=server.url)
    calls = [
        gateway.call("k", b"{}", deadline_seconds=20, may_start=lambda: True) for _ in range(20)
    ]
    answers_received = await asyncio.gather(*calls)
    assert {answer.meaning for answer in answers_received} == {Meaning.ACCEPTED}
    assert server.connections == 20


async def test_a_cancelled_call_passes_it_on_and_the_next_call_works(
    make_gateway: MakeGateway, serve: Serve
) -> None:
    """CancelledError is not an answer; the connection in the middle of a request is not reused."""
    calls = 0

    async def answers(reader: Reader, writer: Writer, request: bytes) -> None:
        nonlocal calls
        calls += 1
        await (silence if calls == 1 else says(ACCEPTED))(reader, writer, request)

    server = await serve(answers)
    gateway = make_gateway(api_url=server.url)
    first = asyncio.create_task(
        gateway.call("k", b"{}", deadline_seconds=20, may_start=lambda: True)
    )
    while not server.requests:
        server.arrival.clear()
        await server.arrival.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    second = await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True)
    assert second.meaning is Meaning.ACCEPTED
    assert server.connections == 2


async def test_the_environment_redirects_nothing_and_replaces_no_key(
    call: Call, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a proxy variable nor a .netrc has a say in where the key goes or which it is."""
    proxy = await serve(says(ACCEPTED))
    server = await serve(says(ACCEPTED))
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy.url)
    assert (await call(server.url)).meaning is Meaning.ACCEPTED
    assert proxy.connections == 0
    assert f"Bearer {API_KEY}".encode() in server.requests[0]


# -- errors that nobody expects -------------------------------------------------------------------


def _raising(error: Exception) -> Transport:
    def handler(_: httpx.Request) -> httpx.Response:
        raise error

    return Transport(lambda: httpx.MockTransport(handler))


async def test_an_unexpected_error_is_an_answer_and_is_logged_by_its_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its text may hold a header or an address, so that stays out of the log."""
    transport = _raising(KeyError(f"{API_KEY} jane@example.com"))
    with caplog.at_level(logging.ERROR):
        came = await transport.post(
            "http://127.0.0.1:9/", {}, b"", deadline_seconds=5, may_start=lambda: True
        )
    await transport.close()
    assert came == Broken("key_error", may_have_left=False)
    assert [record.message for record in caplog.records] == [
        "a request ended in an unexpected KeyError"
    ]


@pytest.mark.parametrize(
    "kind",
    [
        httpx.ReadError,
        httpx.ReadTimeout,
        httpx.WriteError,
        httpx.WriteTimeout,
        httpx.RemoteProtocolError,
    ],
)
async def test_errors_of_a_request_under_way_are_believed_whatever_was_traced(
    kind: type[httpx.TransportError],
) -> None:
    """A transport that traces nothing must not make them look like never sent."""
    transport = _raising(kind("cut"))
    came = await transport.post(
        "http://127.0.0.1:9/", {}, b"", deadline_seconds=5, may_start=lambda: True
    )
    await transport.close()
    assert isinstance(came, Broken)
    assert came.may_have_left


async def test_an_error_after_the_status_keeps_the_status(serve: Serve) -> None:
    """Whatever breaks within the body, the status is known."""
    server = await serve(says(ACCEPTED[:-3], then_close=True))
    transport = Transport()
    came = await transport.post(server.url, {}, b"", deadline_seconds=5, may_start=lambda: True)
    await transport.close()
    assert isinstance(came, Received)
    assert came.status == 200
    assert came.body.startswith(b'{"id":')


async def test_a_connection_that_broke_serves_no_other_call() -> None:
    """Only what was read to its end is used again."""
    made = 0

    def network() -> httpx.MockTransport:
        nonlocal made
        made += 1
        breaks = made == 1

        def handler(_: httpx.Request) -> httpx.Response:
            if breaks:
                raise httpx.ReadError("cut")
            return httpx.Response(200)

        return httpx.MockTransport(handler)

    transport = Transport(network)
    for _ in range(3):
        await transport.post(
            "http://127.0.0.1:9/", {}, b"", deadline_seconds=5, may_start=lambda: True
        )
    await transport.close()
    assert made == 2
