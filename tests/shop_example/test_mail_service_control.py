"""The mail-service's control plane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shop_example.mail_service.connection import _is_loopback
from shop_example.mail_service.events import ClockMoved, FaultsSet
from shop_example.mail_service.exchange import Request
from tests.shop_example.mail_client import Client, control, events, post, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from shop_example.mail_service.server import MailServer

KEY = "email-order-7"
HONEST = {"rates": {}, "targeted": [], "seed": 0, "drip_seconds": 0.5, "late_seconds": 5.0}


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where the service under test records."""
    return tmp_path / "record.jsonl"


@pytest.fixture
async def server(record: Path) -> AsyncIterator[MailServer]:
    """A service with the default settings."""
    async with serving(record) as server:
        yield server


async def test_the_state_counts_what_happened(server: MailServer, record: Path) -> None:
    """Requests and what became of them, keys, faults and the clock."""
    plan = {"targeted": [{"key": KEY, "fault": "503_before", "nth": 2}]}
    await control(server.url, "PUT", "/faults", plan)
    for _ in range(3):
        await post(server.url, key=KEY)
    await control(server.url, "POST", "/clock", {"advance_seconds": 10})
    state = (await control(server.url, "GET", "/state")).json
    assert state == {
        "starts": 1,
        "requests": 3,
        "accepted": 1,
        "replayed": 1,
        "refused": 1,
        "cut": 0,
        "malformed": 0,
        "in_progress": 0,
        "keys": 1,
        "faults": {"503_before": 1},
        "clock_offset_seconds": 10.0,
        "keeps_keys": True,
        "key_window_seconds": 86_400.0,
        "record": str(record),
    }


async def test_the_state_is_the_same_after_a_restart(record: Path) -> None:
    """Counts come from the record, not from memory."""
    async with serving(record, rates={"500_after": 0.5}) as server:
        for number in range(10):
            await post(server.url, key=f"key-{number}")
        before = (await control(server.url, "GET", "/state")).json
    async with serving(record) as server:
        after = (await control(server.url, "GET", "/state")).json
    assert after == {**before, "starts": 2}


async def test_expired_keys_are_not_counted(server: MailServer) -> None:
    """Moving the clock empties the memory."""
    await post(server.url, key=KEY)
    await control(server.url, "POST", "/clock", {"advance_seconds": 90_000})
    assert (await control(server.url, "GET", "/state")).json["keys"] == 0


async def test_faults_are_replaced_as_a_whole(server: MailServer) -> None:
    """What a PUT doesn't name is as in an honest service, except for the seed."""
    assert (await control(server.url, "GET", "/faults")).json == HONEST
    plan = {
        "rates": {"503": 0.25, "stall": 0.1},
        "targeted": [{"key": KEY, "fault": "late", "times": 2}],
        "seed": 9,
        "drip_seconds": 0.1,
        "late_seconds": 1,
    }
    put = await control(server.url, "PUT", "/faults", plan)
    assert put.json == {
        "rates": {"503_before": 0.25, "stall": 0.1},
        "targeted": [{"key": KEY, "fault": "late", "times": 2, "nth": 1}],
        "seed": 9,
        "drip_seconds": 0.1,
        "late_seconds": 1.0,
    }
    assert (await control(server.url, "GET", "/faults")).json == put.json
    assert (await control(server.url, "PUT", "/faults", {})).json == {**HONEST, "seed": 9}


async def test_changes_are_on_record(server: MailServer, record: Path) -> None:
    """A judge can see from when on which faults and which time were in force."""
    await control(server.url, "PUT", "/faults", {"rates": {"503": 0.25}})
    await control(server.url, "POST", "/clock", {"advance_seconds": 5})
    await control(server.url, "POST", "/clock", {"advance_seconds": -2})
    assert [event.rates for event in events(record, FaultsSet)] == [{}, {"503_before": 0.25}]
    assert [event.offset_seconds for event in events(record, ClockMoved)] == [5, 3]


@pytest.mark.parametrize(
    ("method", "path", "values", "problem"),
    [
        ("PUT", "/faults", {"rates": {"nonsense": 1}}, "there is no fault 'nonsense'"),
        ("PUT", "/faults", {"rates": [1]}, "rates must be an object"),
        ("PUT", "/faults", {"targeted": {}}, "targeted a list"),
        ("PUT", "/faults", {"targeted": [{"key": "a"}]}, "targeted: each needs"),
        ("PUT", "/faults", {"fautls": {}}, "no field fautls"),
        ("PUT", "/faults", {"seed": 1.5}, "seed must be a whole number"),
        ("PUT", "/faults", {"drip_seconds": -1}, "drip_seconds must not be negative"),
        ("PUT", "/faults", [], "JSON object"),
        ("PUT", "/faults", None, "JSON object"),
        ("POST", "/clock", {}, "advance_seconds"),
        ("POST", "/clock", {"advance_seconds": "a day"}, "advance_seconds must be a number"),
        ("POST", "/clock", {"advance_seconds": 10**400}, "advance_seconds must be a number"),
        ("GET", "/record", None, "name one key"),
    ],
)
async def test_a_wrong_request_names_the_field_and_changes_nothing(
    server: MailServer, method: str, path: str, values: object, problem: str
) -> None:
    """400 with one line for a person."""
    before = (await control(server.url, "GET", "/state")).json
    seen = await control(server.url, method, path, values)
    assert seen.status == 400
    assert problem in seen.json["message"]
    assert (await control(server.url, "GET", "/faults")).json == HONEST
    assert (await control(server.url, "GET", "/state")).json == before


async def test_the_record_can_be_asked_for_one_key(server: MailServer) -> None:
    """All that happened under a key, oldest first, and nothing of its neighbours."""
    await post(server.url, key=KEY)
    await post(server.url, key="email-order-8")
    await post(server.url, key=KEY)
    seen = (await control(server.url, "GET", f"/record?key={KEY}")).json
    assert seen["key"] == KEY
    assert [(event["event"], event["seq"]) for event in seen["events"]] == [
        ("received", 1),
        ("decided", 1),
        ("received", 3),
        ("decided", 3),
    ]
    assert seen["events"][1]["mail"]["subject"] == "Your order 7"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/state", 405), ("GET", "/clock", 405), ("DELETE", "/faults", 405), ("GET", "", 404)],
)
async def test_other_control_requests_are_refused(
    server: MailServer, method: str, path: str, status: int
) -> None:
    """404 and 405 as everywhere."""
    assert (await control(server.url, method, path)).status == status


async def test_control_requests_are_no_requests_of_the_record(server: MailServer) -> None:
    """Looking at the counts doesn't change them."""
    async with await Client.connect(server.url) as client:
        for _ in range(3):
            await client.call("GET", "/_control/state")
        state = (await client.call("GET", "/_control/state")).json
    assert state["requests"] == 0


async def test_only_this_machine_controls(server: MailServer) -> None:
    """A request from elsewhere gets 403, whatever it asks."""
    request = Request(1, False, "GET", "/_control/state", "", ())
    reply = await server.respond(request)
    assert reply.answer is not None
    assert reply.answer.status == 403


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (("127.0.0.1", 1), True),
        (("127.8.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("192.0.2.7", 1), False),
        (("::ffff:192.0.2.7", 1, 0, 0), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        ("", False),
        (None, False),
    ],
)
def test_which_peers_are_on_this_machine(peer: object, local: bool) -> None:
    """Loopback in all its forms, and nothing else."""
    assert _is_loopback(peer) is local
