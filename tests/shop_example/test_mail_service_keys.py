"""The mail-service's idempotency keys, by Resend's rules."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from shop_example.mail_service.events import Decided
from tests.shop_example.mail_client import (
    Client,
    control,
    email,
    events,
    post,
    request,
    serving,
    tally,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from pathlib import Path

KEY = "email-order-7"


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Where the service under test records."""
    return tmp_path / "record.jsonl"


async def test_a_repeat_gets_the_same_id_and_sends_nothing(record: Path) -> None:
    """200 with the first id; the record calls it a replay."""
    async with serving(record) as server:
        first, second = await post(server.url, key=KEY), await post(server.url, key=KEY)
    assert first.status == second.status == 200
    assert first.json == second.json
    count = tally(record).by_key[KEY]
    assert (count.requests, count.accepted, count.replayed) == (2, 1, 1)


async def test_the_same_payload_in_another_form_is_the_same(record: Path) -> None:
    """A single recipient as a string or as a list of one makes no difference."""
    async with serving(record) as server:
        first = await post(server.url, email(to="ada@example.com"), KEY)
        second = await post(server.url, email(to=["ada@example.com"]), KEY)
    assert first.json == second.json


async def test_another_payload_under_a_used_key_is_refused(record: Path) -> None:
    """409 invalid_idempotent_request, and the first mail stays the only one."""
    async with serving(record) as server:
        await post(server.url, key=KEY)
        seen = await post(server.url, email(subject="Your order 8"), KEY)
    assert (seen.status, seen.name) == (409, "invalid_idempotent_request")
    assert tally(record).by_key[KEY].accepted == 1


async def test_a_twin_of_a_request_in_progress_is_refused(record: Path) -> None:
    """409 concurrent_idempotent_requests until the first is through, then its id."""
    async with (
        serving(record, latency_seconds=0.2) as server,
        await Client.connect(server.url) as first,
    ):
        first.send(request(email(), KEY))
        await aeventually(lambda: _in_progress(server.url))
        twin = await post(server.url, key=KEY)
        other = await post(server.url, key="email-order-8")
        answer = await first.answer()
        later = await post(server.url, key=KEY)
    assert (twin.status, twin.name) == (409, "concurrent_idempotent_requests")
    assert answer.json == later.json != other.json
    assert tally(record).by_key[KEY].accepted == 1


async def test_of_many_twins_at_once_one_is_accepted(record: Path) -> None:
    """Fifty requests with one key on fifty connections: one mail."""
    async with serving(record) as server:
        seen = await asyncio.gather(*(post(server.url, key=KEY) for _ in range(50)))
    assert {one.status for one in seen} <= {200, 409}
    assert len({one.json["id"] for one in seen if one.status == 200}) == 1
    assert tally(record).by_key[KEY].accepted == 1


async def test_a_refused_request_leaves_its_key_free(record: Path) -> None:
    """A 422 burns no key: the corrected mail is accepted under it."""
    async with serving(record) as server:
        refused = await post(server.url, email(subject=None), KEY)
        accepted = await post(server.url, key=KEY)
    assert (refused.status, accepted.status) == (422, 200)


@pytest.mark.parametrize(
    ("key", "status"), [("", 400), ("k", 200), ("k" * 256, 200), ("k" * 257, 400)]
)
async def test_a_key_has_1_to_256_characters(record: Path, key: str, status: int) -> None:
    """400 invalid_idempotency_key beyond that."""
    async with serving(record) as server:
        seen = await post(server.url, key=key)
    assert seen.status == status
    assert status == 200 or seen.name == "invalid_idempotency_key"


async def test_a_key_is_forgotten_when_its_window_is_over(record: Path) -> None:
    """One second before the end: a replay; at the end: a second mail, as at the provider."""
    async with serving(record, key_window_seconds=86_400) as server:
        first = await post(server.url, key=KEY)
        await control(server.url, "POST", "/clock", {"advance_seconds": 86_390})
        inside = await post(server.url, key=KEY)
        await control(server.url, "POST", "/clock", {"advance_seconds": 20})
        outside = await post(server.url, key=KEY)
        again = await post(server.url, key=KEY)
    assert inside.json == first.json != outside.json == again.json
    assert tally(record).duplicates == 1


async def test_without_keys_each_request_is_a_new_mail(record: Path) -> None:
    """--no-keys: the header is recorded and means nothing, whatever its length."""
    async with serving(record, keeps_keys=False) as server:
        seen = [await post(server.url, key=key) for key in (KEY, KEY, "k" * 300)]
    assert {one.status for one in seen} == {200}
    assert len({one.json["id"] for one in seen}) == 3
    assert tally(record).by_key[KEY].accepted == 2


async def test_requests_without_a_key_are_all_new(record: Path) -> None:
    """No header, no memory."""
    async with serving(record) as server:
        first, second = await post(server.url), await post(server.url)
    assert first.json != second.json


@pytest.mark.parametrize("keeps_keys", [True, False])
async def test_keys_ids_and_clock_survive_a_restart(record: Path, keeps_keys: bool) -> None:
    """A new process on the same record knows what the old one knew."""
    async with serving(record, keeps_keys=keeps_keys) as server:
        first = await post(server.url, key=KEY)
        await control(server.url, "POST", "/clock", {"advance_seconds": 80_000})
    async with serving(record, keeps_keys=keeps_keys) as server:
        repeat = await post(server.url, key=KEY)
        conflict = await post(server.url, email(subject="Your order 8"), KEY)
        await control(server.url, "POST", "/clock", {"advance_seconds": 10_000})
        expired = await post(server.url, key=KEY)
    assert (repeat.json == first.json) is keeps_keys
    assert conflict.status == (409 if keeps_keys else 200)
    assert expired.json not in (first.json, repeat.json)
    assert [event.seq for event in events(record, Decided)] == [1, 2, 3, 4]


async def _in_progress(url: str) -> bool:
    state = await control(url, "GET", "/state")
    return bool(state.json["in_progress"] == 1)
