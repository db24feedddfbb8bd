"""Promise 4: a repeat carries the same key and the same bytes, whatever has changed in between."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox.job import Attempt, Request
from outbox.ledger import Intent
from outbox.outcome import Meaning
from tests.promises.by_hand import PLACE, ByHand
from tests.promises.scripted import (
    ANSWER_LOST,
    FAILS,
    THROTTLED,
    UNAVAILABLE,
    UNREACHED,
    ScriptedGateway,
    Step,
    drain,
)

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

MAY_HAVE_BEEN_SENT = {
    "answer lost": ANSWER_LOST,
    "failed": FAILS,
    "unavailable": UNAVAILABLE,
    "in progress": Step(Meaning.IN_PROGRESS, reason="http_409"),
    "unreadable": Step(Meaning.ACCEPTED_UNREADABLE, accepts=True, reason="http_200 unreadable"),
}


@pytest.mark.parametrize("first", MAY_HAVE_BEEN_SENT.values(), ids=MAY_HAVE_BEEN_SENT.keys())
async def test_a_new_template_does_not_change_a_request_that_may_have_been_sent(
    database_url: str, enqueue: Enqueue, gateway: ScriptedGateway, first: Step
) -> None:
    """The template changes while the first answer is on its way: the repeat knows the old one."""

    async def deploy() -> None:
        gateway.template = "good day {payload}"

    gateway.plan("k", replace(first, during=deploy))
    enqueue("k", {"n": 7})
    enqueue("k-new", {"n": 8}, priority=1)
    assert await drain(database_url, gateway, concurrency=1) == 0
    assert [call.body for call in gateway.calls_of("k")] == [b'hello {"n":7}'] * 2
    assert [call.body for call in gateway.calls_of("k-new")] == [b'good day {"n":8}']


async def test_every_repeat_of_many_is_the_first_request(
    database_url: str, enqueue: Enqueue, gateway: ScriptedGateway
) -> None:
    """A deployment between any two tries changes nothing."""

    async def deploy() -> None:
        gateway.template += "!"

    for step in (ANSWER_LOST, FAILS, UNAVAILABLE, THROTTLED, UNREACHED, ANSWER_LOST):
        gateway.plan("k", replace(step, during=deploy, before=deploy))
    enqueue("k")
    assert await drain(database_url, gateway) == 0
    assert len({call.body for call in gateway.calls}) == 1
    assert len(gateway.calls) == 6


async def test_a_template_that_broke_meanwhile_keeps_no_open_request_from_its_repeat(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """What is frozen needs no template any more."""

    async def break_it() -> None:
        gateway.unrenderable.add("k")

    gateway.plan("k", replace(ANSWER_LOST, during=break_it))
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert len({call.body for call in gateway.calls}) == 1
    assert len(gateway.calls) == 2
    assert tables.states() == {job_id: ("done", "delivered")}


async def test_a_request_that_never_left_is_frozen_all_the_same(
    database_url: str, enqueue: Enqueue, gateway: ScriptedGateway
) -> None:
    """Frozen before the first try, not after the first arrival."""

    async def deploy() -> None:
        gateway.template = "good day {payload}"

    gateway.plan("k", replace(UNREACHED, before=deploy))
    enqueue("k", {"n": 7})
    assert await drain(database_url, gateway) == 0
    assert [call.body for call in gateway.calls] == [b'hello {"n":7}']


async def test_another_consumer_repeats_what_a_crashed_one_froze(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, gateway: ScriptedGateway
) -> None:
    """The next consumer has another template, namespace and sender; the ledger has the request."""
    enqueue()
    job = await by_hand.claim_one()
    frozen = Intent(job, Request("prod-k", b"as it was first"))
    assert isinstance((await by_hand.ledger.begin([frozen]))[0], Attempt)
    tables.expire_leases()
    assert await drain(database_url, gateway) == 0
    assert [(call.wire_key, call.body) for call in gateway.calls] == [
        ("prod-k", b"as it was first")
    ]


async def test_another_job_of_the_key_repeats_what_the_first_one_froze(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, gateway: ScriptedGateway
) -> None:
    """The repeat may come from another job with the same key: still the same bytes."""
    first = enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job, b"as it was first")
    tables.connection.execute("DELETE FROM outbox.job WHERE id = %s", [first])
    enqueue()
    assert await drain(database_url, gateway) == 0
    assert [call.body for call in gateway.calls] == [b"as it was first"]


async def test_an_open_request_is_not_repeated_at_another_provider_or_account(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """The key means nothing there: the job is held until a person has looked."""
    moved = replace(PLACE, account="another")
    async with ByHand(database_url, place=moved) as elsewhere:
        job_id = enqueue()
        await elsewhere.begun(await elsewhere.claim_one())
    tables.expire_leases()
    assert await drain(database_url, gateway) == 0
    assert gateway.calls == []
    assert tables.states() == {job_id: ("held", "open_at_another_account")}


async def test_a_request_that_surely_never_left_may_move_to_another_provider(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Nothing is open: the new provider gets a request in its own words, under the same key."""
    old = ScriptedGateway()
    old.provider = "old"
    old.plan("k", *[UNREACHED] * 50)
    enqueue("k", {"n": 7})
    assert await drain(database_url, old, timeout=0.5) == 1
    gateway.template = "in the new provider's words: {payload}"
    assert await drain(database_url, gateway) == 0
    assert [call.body for call in gateway.calls] == [b'in the new provider\'s words: {"n":7}']
    assert tables.effect("k")["provider"] == "scripted"


async def test_the_ledgers_hash_is_that_of_the_bytes_that_left(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """The request is dropped with the last answer; what it was can still be proven."""
    gateway.plan("k", FAILS)
    enqueue()
    assert await drain(database_url, gateway) == 0
    effect = tables.effect("k")
    assert effect["request"] is None
    assert effect["request_hash"] == hashlib.sha256(gateway.calls[-1].body).digest()


async def test_bytes_that_are_no_text_survive_the_ledger(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, gateway: ScriptedGateway
) -> None:
    """Byte for byte means any byte."""
    body = bytes(range(256)) * 64
    enqueue()
    await by_hand.begun(await by_hand.claim_one(), body)
    tables.expire_leases()
    assert await drain(database_url, gateway) == 0
    assert gateway.calls[0].body == body
