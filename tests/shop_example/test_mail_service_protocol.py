"""The mail-service as a client of Resend's protocol sees it when all is well."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import TYPE_CHECKING

import pytest

from shop_example.mail_service import connection as connection_module
from shop_example.mail_service.events import Malformed, Received
from tests.shop_example.mail_client import (
    Client,
    email,
    events,
    post,
    recorded,
    request,
    serving,
    tally,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shop_example.mail_service.server import MailServer


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where the service under test records."""
    return tmp_path / "record.jsonl"


@pytest.fixture
async def server(record: Path) -> AsyncIterator[MailServer]:
    """A service with the default settings."""
    async with serving(record) as server:
        yield server


async def test_an_accepted_mail_is_answered_with_its_id(server: MailServer) -> None:
    """200 and nothing but an id that is a UUID."""
    seen = await post(server.url)
    assert seen.status == 200
    assert seen.headers["content-type"].startswith("application/json")
    assert str(uuid.UUID(seen.json.pop("id"))) in seen.body.decode()
    assert set(seen.json) == {"id"}


async def test_errors_have_status_name_and_message(server: MailServer) -> None:
    """The shape of every refusal is Resend's."""
    seen = await post(server.url, email(subject=None))
    assert set(seen.json) == {"statusCode", "name", "message"}
    assert seen.json["statusCode"] == seen.status == 422


@pytest.mark.parametrize("authorization", [b"", b"Basic cmU6", b"Bearer", b"Bearer  "])
async def test_a_request_without_a_key_is_not_let_in(
    server: MailServer, record: Path, authorization: bytes
) -> None:
    """401 missing_api_key, and nothing is accepted."""
    async with await Client.connect(server.url) as client:
        head = b"authorization: " + authorization + b"\r\n" if authorization else b""
        client.send(request(email(), token="").replace(b"Host:", head + b"Host:"))
        seen = await client.answer()
    assert (seen.status, seen.name) == (401, "missing_api_key")
    assert tally(record).accepted == 0


async def test_only_the_right_key_is_let_in_when_there_is_one(record: Path) -> None:
    """403 invalid_api_key for another; the right one passes."""
    async with (
        serving(record, api_key="re_right") as server,
        await Client.connect(server.url) as client,
    ):
        refused = await client.post(token="re_wrong")
        accepted = await client.post(token="re_right")
    assert (refused.status, refused.name) == (403, "invalid_api_key")
    assert accepted.status == 200


async def test_a_connection_is_kept_for_the_next_request(server: MailServer) -> None:
    """Three requests, one connection, refusals included."""
    async with await Client.connect(server.url) as client:
        statuses = [(await client.post(mail)).status for mail in (email(), {}, email())]
    assert statuses == [200, 422, 200]


async def test_pipelined_requests_are_answered_in_order(server: MailServer, record: Path) -> None:
    """Requests sent without waiting get their answers one by one, none mixed up."""
    async with await Client.connect(server.url) as client:
        client.send(b"".join(request(email(subject=f"Order {n}"), f"key-{n}") for n in range(20)))
        ids = [(await client.answer()).json["id"] for _ in range(20)]
    by_key = tally(record).by_key
    assert [by_key[f"key-{n}"].email_ids for n in range(20)] == [[found] for found in ids]


async def test_a_client_that_pipelines_too_much_has_to_wait_and_loses_nothing(
    server: MailServer, record: Path
) -> None:
    """Input beyond the limit is not read while one request is in progress, and read later."""
    mail = email(text="x" * 60_000)
    async with await Client.connect(server.url) as client:
        client.send(b"".join(request(mail, f"key-{n}") for n in range(40)))
        statuses = {(await client.answer()).status for _ in range(40)}
    assert statuses == {200}
    assert tally(record).accepted == 40


async def test_a_request_may_arrive_byte_by_byte(server: MailServer) -> None:
    """However a request is cut into segments, it is one request."""
    async with await Client.connect(server.url) as client:
        data = request(email(text="x", html=None))
        for index in range(len(data)):
            client.send(data[index : index + 1])
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200


async def test_a_chunked_body_is_as_good_as_any(server: MailServer) -> None:
    """Transfer-Encoding: chunked is HTTP/1.1 and accepted."""
    body = json.dumps(email()).encode()
    async with await Client.connect(server.url) as client:
        head, _, _ = request(b"").partition(b"Content-Length")
        client.send(head + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send(b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:]))
        assert (await client.answer()).status == 200


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(server: MailServer) -> None:
    """Expect: 100-continue gets its interim answer before the body is sent."""
    async with await Client.connect(server.url) as client:
        head, separator, body = request(email()).partition(b"\r\n\r\n")
        client.send(head + b"\r\nExpect: 100-continue" + separator)
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        client.send(body)
        assert (await client.answer()).status == 200


async def test_a_client_that_closes_its_half_still_gets_its_answer(server: MailServer) -> None:
    """FIN after a whole request means no more requests, not no more interest."""
    async with await Client.connect(server.url) as client:
        client.send(request(email()))
        client.writer.write_eof()
        assert b'{"id":' in await client.rest()


@pytest.mark.parametrize(
    "change", [(b"HTTP/1.1", b"HTTP/1.0"), (b"Host", b"Connection: close\r\nHost")]
)
async def test_the_connection_is_closed_when_the_client_wants_it(
    server: MailServer, change: tuple[bytes, bytes]
) -> None:
    """HTTP/1.0 and Connection: close get one answer that says so, then the end."""
    async with await Client.connect(server.url) as client:
        client.send(request(email()).replace(*change))
        whole = await client.rest()
    assert whole.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in whole


async def test_unknown_paths_and_methods_are_refused_and_recorded(
    server: MailServer, record: Path
) -> None:
    """404 and 405 with Resend's names; a client that is sent astray leaves a trace."""
    async with await Client.connect(server.url) as client:
        elsewhere = await client.call("POST", "/v1/emails", email())
        wrong_method = await client.call("PUT", "/emails", email())
    assert (elsewhere.status, elsewhere.name) == (404, "not_found")
    assert (wrong_method.status, wrong_method.name) == (405, "method_not_allowed")
    assert wrong_method.headers["allow"] == "post"
    assert [event.path for event in events(record, Received)] == ["/v1/emails", "/emails"]
    assert tally(record).requests == 0


async def test_head_gets_no_body(server: MailServer) -> None:
    """An answer to HEAD is its head alone, and the connection goes on."""
    async with await Client.connect(server.url) as client:
        client.send(b"HEAD /emails HTTP/1.1\r\nhost: test\r\n\r\n")
        head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 405 ")
        assert (await client.post()).status == 200


async def test_bytes_that_are_no_http_are_refused_and_recorded(
    server: MailServer, record: Path
) -> None:
    """400, the end of the connection, and a line in the record."""
    async with await Client.connect(server.url) as client:
        client.send(b"\x16\x03\x01 this is TLS, or a joke\r\n\r\n")
        assert (await client.answer()).status == 400
        assert await client.rest() == b""
    assert len(await recorded(record, Malformed)) == 1


async def test_a_head_without_end_is_refused(server: MailServer) -> None:
    """431 as soon as the limit is passed, not when memory is."""
    async with await Client.connect(server.url) as client:
        client.send(b"POST /emails HTTP/1.1\r\nhost: test\r\nx: " + b"x" * 400_000)
        assert (await client.answer()).status == 431


async def test_a_body_announced_as_too_large_is_refused_unread(
    server: MailServer, record: Path
) -> None:
    """413 at once, before the body; the refusal reaches a client that goes on sending."""
    async with await Client.connect(server.url) as client:
        head = request(b"").replace(b"Content-Length: 0", b"Content-Length: 99999999")
        client.send(head + b"x" * 1_000_000)
        seen = await client.answer()
        assert await client.rest() == b""
    assert (seen.status, seen.name) == (413, "payload_too_large")
    assert [event.body_bytes for event in events(record, Received)] == [99_999_999]
    assert tally(record).by_key[None].refused == 1


async def test_a_body_that_grows_too_large_is_refused(
    server: MailServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that were never announced count as well."""
    monkeypatch.setattr(connection_module, "MAX_BODY_BYTES", 100)
    async with await Client.connect(server.url) as client:
        head, _, _ = request(b"").partition(b"Content-Length")
        client.send(
            head + b"Transfer-Encoding: chunked\r\n\r\n" + b"40\r\n%b\r\n" % (b"x" * 64) * 3
        )
        assert (await client.answer()).status == 413


async def test_an_accepted_mail_can_be_looked_at(server: MailServer) -> None:
    """GET /emails/{id} shows recipients, subject and parts, in Resend's shape."""
    async with await Client.connect(server.url) as client:
        sent = await client.post(email(to="ada@example.com", cc=["bob@example.com"]))
        seen = await client.call("GET", f"/emails/{sent.json['id']}")
        unknown = await client.call("GET", f"/emails/{uuid.uuid4()}")
        malformed = await client.call("GET", "/emails/7")
    assert seen.status == 200
    assert seen.json["object"] == "email"
    assert seen.json["to"] == ["ada@example.com"]
    assert seen.json["cc"] == ["bob@example.com"]
    assert (seen.json["subject"], seen.json["text"]) == ("Your order 7", "Thank you.")
    assert (unknown.status, unknown.name) == (404, "not_found")
    assert (malformed.status, malformed.name) == (422, "invalid_parameter")


async def test_looking_needs_a_key_and_leaves_no_trace(server: MailServer, record: Path) -> None:
    """Reads are authorised like the rest, and are no requests of the record."""
    async with await Client.connect(server.url) as client:
        client.send(b"GET /emails/7 HTTP/1.1\r\nhost: test\r\n\r\n")
        assert (await client.answer()).status == 401
    assert events(record, Received) == []


async def test_more_requests_than_the_rate_limit_get_429(record: Path) -> None:
    """The rate is per second; the headers say when to come back, and nothing was accepted."""
    async with (
        serving(record, rate_limit=2) as server,
        await Client.connect(server.url) as client,
    ):
        seen = [await client.post(key=f"key-{n}") for n in range(3)]
    assert [one.status for one in seen] == [200, 200, 429]
    assert [one.headers["ratelimit-remaining"] for one in seen] == ["1", "0", "0"]
    assert {one.headers["ratelimit-limit"] for one in seen} == {"2"}
    assert seen[2].name == "rate_limit_exceeded"
    assert (seen[2].headers["retry-after"], seen[2].headers["ratelimit-reset"]) == ("1", "1")
    assert tally(record).accepted == 2


async def test_a_stop_lets_the_answer_in_hand_go_out(record: Path) -> None:
    """A request that is being processed when the service stops is answered, then the end."""
    async with serving(record, latency_seconds=0.05) as server:
        client = await Client.connect(server.url)
        client.send(request(email()))
        idle = await Client.connect(server.url)
        await idle.post()
        assert (await client.answer()).status == 200
        client.send(request(email()))
        await idle.call("GET", "/_control/state")
    async with client, idle:
        assert (await client.answer()).status == 200
        assert await client.rest() == await idle.rest() == b""
