"""Each fault of the mail-service: what the client sees, and what the record says about it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from shop_example.mail_service.events import Closed, Decided
from shop_example.mail_service.faults import FAULTS, Manner
from tests.shop_example.mail_client import (
    Client,
    control,
    email,
    events,
    post,
    recorded,
    request,
    serving,
    tally,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shop_example.mail_service.server import MailServer

KEY = "email-order-7"

ANSWERS_INSTEAD = {
    "500_before": (500, "internal_server_error"),
    "502_before": (502, "application_error"),
    "503_before": (503, "service_unavailable"),
    "504_before": (504, "application_error"),
    "408": (408, "application_error"),
    "429": (429, "rate_limit_exceeded"),
    "429_daily_quota": (429, "daily_quota_exceeded"),
    "429_monthly_quota": (429, "monthly_quota_exceeded"),
    "409_in_progress": (409, "concurrent_idempotent_requests"),
    "409_other_payload": (409, "invalid_idempotent_request"),
    "400": (400, "validation_error"),
    "401": (401, "restricted_api_key"),
    "403": (403, "invalid_api_key"),
    "403_domain": (403, "validation_error"),
    "404": (404, "not_found"),
    "422": (422, "validation_error"),
}
ANSWERS_AFTER = {
    "500_after": (500, "internal_server_error"),
    "502_after": (502, "application_error"),
    "503_after": (503, "service_unavailable"),
    "504_after": (504, "application_error"),
}


@dataclass(frozen=True)
class Faulty:
    """A service whose next request under KEY meets a fault, and a connection to it."""

    server: MailServer
    client: Client
    record: Path

    async def arm(self, fault: str, **pace: float) -> None:
        """Has the next request meet ``fault``."""
        plan = {"targeted": [{"key": KEY, "fault": fault}], **pace}
        assert (await control(self.server.url, "PUT", "/faults", plan)).status == 200

    async def send(self, fault: str, **pace: float) -> Client:
        """Arms the fault and sends the request that meets it."""
        await self.arm(fault, **pace)
        self.client.send(request(email(), KEY))
        return self.client

    async def decided(self) -> Decided:
        """What the record says of the request."""
        return (await recorded(self.record, Decided))[0]

    async def closed(self) -> Closed:
        """What the record says of the end of its connection."""

        async def first() -> Closed | None:
            return next((end for end in events(self.record, Closed) if end.connection == 1), None)

        return await aeventually(first)

    async def proves_accepted(self, fault: str, status: int | None) -> None:
        """The record has the mail and the fault, and the key replays it."""
        decided = await self.decided()
        assert (decided.accepted, decided.fault, decided.status) == (True, fault, status)
        repeat = await post(self.server.url, key=KEY)
        assert repeat.json == {"id": decided.email_id}
        assert tally(self.record).by_key[KEY].accepted == 1

    async def proves_not_accepted(self, fault: str, status: int | None) -> None:
        """The record has the fault and no mail; the next request is accepted."""
        decided = await self.decided()
        assert (decided.accepted, decided.replayed) == (False, False)
        assert (decided.fault, decided.status, decided.email_id) == (fault, status, None)
        assert (await post(self.server.url, key=KEY)).status == 200
        count = tally(self.record).by_key[KEY]
        assert (count.requests, count.accepted, count.surplus) == (2, 1, 0)


@pytest.fixture
async def faulty(tmp_path: Path) -> AsyncIterator[Faulty]:
    """A service and one connection to it."""
    record = tmp_path / "record.jsonl"
    async with serving(record) as server, await Client.connect(server.url) as client:
        yield Faulty(server, client, record)


@pytest.mark.parametrize("fault", ANSWERS_INSTEAD)
async def test_an_error_instead_of_processing(faulty: Faulty, fault: str) -> None:
    """The error that the fault is named after, no mail, and the connection lives on."""
    client = await faulty.send(fault)
    seen = await client.answer()
    assert (seen.status, seen.name) == ANSWERS_INSTEAD[fault]
    assert (await client.call("GET", "/_control/state")).status == 200
    await faulty.proves_not_accepted(fault, seen.status)


@pytest.mark.parametrize("fault", ANSWERS_AFTER)
async def test_an_error_after_accepting(faulty: Faulty, fault: str) -> None:
    """An error that hides an accepted mail."""
    seen = await (await faulty.send(fault)).answer()
    assert (seen.status, seen.name) == ANSWERS_AFTER[fault]
    await faulty.proves_accepted(fault, seen.status)


async def test_429_says_when_to_come_back(faulty: Faulty) -> None:
    """Retry-After: 1."""
    seen = await (await faulty.send("429")).answer()
    assert seen.headers["retry-after"] == "1"


async def test_redirect_points_to_where_a_follower_would_be_seen(faulty: Faulty) -> None:
    """307 with a Location; who follows it leaves a request on another path in the record."""
    seen = await (await faulty.send("redirect")).answer()
    assert (seen.status, seen.headers["location"], seen.body) == (307, "/redirected", b"")
    await faulty.proves_not_accepted("redirect", 307)


async def test_drop_before_closes_without_a_byte(faulty: Faulty) -> None:
    """Not accepted, and the client can't know."""
    assert await (await faulty.send("drop_before")).rest() == b""
    await faulty.proves_not_accepted("drop_before", None)


async def test_reset_before_resets_without_a_byte(faulty: Faulty) -> None:
    """A reset; not accepted."""
    with pytest.raises(ConnectionResetError):
        await (await faulty.send("reset_before")).rest()
    await faulty.proves_not_accepted("reset_before", None)


async def test_drop_after_accept_closes_without_a_byte(faulty: Faulty) -> None:
    """Accepted, and not a byte of an answer."""
    assert await (await faulty.send("drop_after_accept")).rest() == b""
    await faulty.proves_accepted("drop_after_accept", None)


async def test_reset_after_accept_resets_without_a_byte(faulty: Faulty) -> None:
    """Accepted, then a reset."""
    with pytest.raises(ConnectionResetError):
        await (await faulty.send("reset_after_accept")).rest()
    await faulty.proves_accepted("reset_after_accept", None)


async def test_half_status_after_accept_cuts_the_status_line(faulty: Faulty) -> None:
    """Accepted; ten bytes that say HTTP and no status."""
    assert await (await faulty.send("half_status_after_accept")).rest() == b"HTTP/1.1 2"
    await faulty.proves_accepted("half_status_after_accept", None)


@pytest.mark.parametrize("fault", ["stall", "stall_before"])
async def test_a_stall_says_nothing_until_the_client_goes(faulty: Faulty, fault: str) -> None:
    """No byte and no end of the connection; what else is sent on it is not answered."""
    client = await faulty.send(fault)
    await faulty.decided()
    client.send(request(email(), "email-order-8"))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await client.reader.read(1)
    client.writer.close()
    closed = await faulty.closed()
    assert (closed.by, closed.answered) == ("client", False)
    assert "email-order-8" not in tally(faulty.record).by_key
    if FAULTS[fault].accepts:
        await faulty.proves_accepted(fault, None)
    else:
        await faulty.proves_not_accepted(fault, None)


async def test_late_answers_after_its_delay(faulty: Faulty) -> None:
    """Accepted at once, answered honestly, but late."""
    began = time.monotonic()
    client = await faulty.send("late", late_seconds=0.1)
    assert (await faulty.decided()).accepted
    assert (await client.answer()).status == 200
    assert time.monotonic() - began >= 0.1
    await faulty.proves_accepted("late", 200)


async def test_slow_drip_sends_the_head_at_once_and_the_body_in_drops(faulty: Faulty) -> None:
    """One byte at a time; all of it in the end, for who has the patience."""
    client = await faulty.send("slow_drip", drip_seconds=0.005)
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    first = await client.reader.read(100)
    assert len(first) < 10
    assert b'{"id":' in first + await client.rest()
    await faulty.proves_accepted("slow_drip", 200)


async def test_a_drip_ends_when_its_client_goes(faulty: Faulty) -> None:
    """Nobody drips into a closed connection; the record says that it was not answered."""
    client = await faulty.send("slow_drip", drip_seconds=0.02)
    await client.reader.readuntil(b"\r\n\r\n")
    await client.vanish()
    closed = await faulty.closed()
    assert (closed.by, closed.answered) == ("client", False)


async def test_garbage_200_is_somebody_elses_page(faulty: Faulty) -> None:
    """Accepted; 200, and HTML where the id should be."""
    seen = await (await faulty.send("garbage_200")).answer()
    assert (seen.status, seen.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert seen.body.startswith(b"<!doctype html>")
    await faulty.proves_accepted("garbage_200", 200)


@pytest.mark.parametrize(
    ("fault", "body"), [("empty_200", b""), ("no_id_200", b'{"object":"email"}')]
)
async def test_a_200_without_the_id(faulty: Faulty, fault: str, body: bytes) -> None:
    """Accepted; 200, but the id is missing."""
    seen = await (await faulty.send(fault)).answer()
    assert (seen.status, seen.body) == (200, body)
    await faulty.proves_accepted(fault, 200)


async def test_truncated_200_announces_more_than_it_sends(faulty: Faulty) -> None:
    """Accepted; the connection ends before the announced length."""
    client = await faulty.send("truncated_200")
    with pytest.raises(asyncio.IncompleteReadError) as cut:
        await client.answer()
    assert cut.value.partial.startswith(b'{"id":')
    await faulty.proves_accepted("truncated_200", 200)


async def test_reset_midway_200_resets_in_the_body(faulty: Faulty) -> None:
    """Accepted; half of the body, then a reset."""
    client = await faulty.send("reset_midway_200")
    head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert (await client.reader.readexactly(6)).startswith(b'{"id":')
    with pytest.raises(ConnectionResetError):
        await client.rest()
    await faulty.proves_accepted("reset_midway_200", 200)


def test_every_fault_has_its_test() -> None:
    """A fault that is added without a test of what a client sees fails here."""
    silent = {
        *("drop_before", "reset_before", "stall_before", "redirect", "drop_after_accept"),
        *("reset_after_accept", "half_status_after_accept", "stall", "late", "slow_drip"),
        *("garbage_200", "empty_200", "no_id_200", "truncated_200", "reset_midway_200"),
    }
    assert set(FAULTS) == silent | set(ANSWERS_INSTEAD) | set(ANSWERS_AFTER)
    assert {fault.manner for fault in FAULTS.values()} == set(Manner)


async def test_an_after_fault_strikes_replays_too(faulty: Faulty) -> None:
    """The answer to a repeat can be lost like any other."""
    first = await faulty.client.post(key=KEY)
    assert await (await faulty.send("drop_after_accept")).rest() == b""
    decided = (await recorded(faulty.record, Decided, 2))[1]
    assert (decided.accepted, decided.replayed) == (False, True)
    assert (decided.email_id, decided.fault) == (first.json["id"], "drop_after_accept")


async def test_an_after_fault_spares_refusals(faulty: Faulty) -> None:
    """What would not be answered with 200 is refused honestly, and no fault is counted."""
    await faulty.arm("drop_after_accept")
    assert (await faulty.client.post(email(subject=None), KEY)).status == 422
    decided = await faulty.decided()
    assert (decided.fault, decided.status, decided.name) == (None, 422, "missing_required_field")


async def test_a_stop_does_not_wait_for_those_it_stalls(tmp_path: Path) -> None:
    """Stalled and dripping clients are cut off when the service stops."""
    async with serving(tmp_path / "record.jsonl", rates={"stall": 0.5, "slow_drip": 0.5}) as server:
        clients = [await Client.connect(server.url) for _ in range(8)]
        for client in clients:
            client.send(request(email()))
        await recorded(tmp_path / "record.jsonl", Decided, 8)
        began = time.monotonic()
    assert time.monotonic() - began < 3
    for client in clients:
        await client.vanish()
