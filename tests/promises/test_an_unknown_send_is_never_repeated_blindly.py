"""Promise 5: past the provider's memory, a possible earlier send is held, never repeated blindly.

Held only where a request may have left.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox.job import Effect, EffectState
from outbox.outcome import JobAction, Meaning, Outcome
from tests.promises.by_hand import POLICY, ByHand
from tests.promises.scripted import (
    ANSWER_LOST,
    FAILS,
    REFUSES,
    THROTTLED,
    UNAVAILABLE,
    UNREACHED,
    WRONG_ACCOUNT,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

HOUR = 3_600.0
DONE = ("done", "delivered")

MAY_HAVE_BEEN_SENT = {
    "answer lost": ANSWER_LOST,
    "failed": FAILS,
    "unavailable": UNAVAILABLE,
    "in progress": Step(Meaning.IN_PROGRESS, reason="http_409"),
}
SURELY_NOT_SENT = {
    "never reached": UNREACHED,
    "throttled": THROTTLED,
    "wrong account": WRONG_ACCOUNT,
}


@pytest.fixture
def forgetful() -> ScriptedGateway:
    """A provider that keeps no keys."""
    return ScriptedGateway(memory_seconds=None)


@pytest.mark.parametrize("first", MAY_HAVE_BEEN_SENT.values(), ids=MAY_HAVE_BEEN_SENT.keys())
async def test_without_keys_a_request_that_may_have_been_accepted_is_held(
    database_url: str, enqueue: Enqueue, tables: Tables, forgetful: ScriptedGateway, first: Step
) -> None:
    """One request, no second one, and the job says that it waits for a person."""
    forgetful.plan("k", first)
    job_id = enqueue()
    assert await drain(database_url, forgetful) == 0
    assert len(forgetful.calls) == 1
    assert tables.states() == {job_id: ("held", "no_memory")}
    effect = tables.effect("k")
    assert effect["state"] == "held"
    assert effect["request"] is not None, "whoever decides to send again needs it"
    assert first.reason in effect["detail"]


@pytest.mark.parametrize("first", SURELY_NOT_SENT.values(), ids=SURELY_NOT_SENT.keys())
async def test_without_keys_a_request_that_surely_was_not_accepted_is_repeated(
    database_url: str, enqueue: Enqueue, tables: Tables, forgetful: ScriptedGateway, first: Step
) -> None:
    """Held only where a request may have left: a refused connection holds nothing."""
    forgetful.plan("k", first)
    job_id = enqueue()
    # A lane that pauses for its configuration ends a drain with 1: mended, it goes on.
    assert await drain(database_url, forgetful) == (1 if first is WRONG_ACCOUNT else 0)
    assert await drain(database_url, forgetful) == 0
    assert forgetful.accepted["k"] == 1
    assert tables.states() == {job_id: DONE}


async def test_without_keys_a_refusal_is_dead_not_held(
    database_url: str, enqueue: Enqueue, tables: Tables, forgetful: ScriptedGateway
) -> None:
    """A refusal is an answer: this was surely not sent."""
    forgetful.plan("k", REFUSES)
    job_id = enqueue()
    assert await drain(database_url, forgetful) == 0
    assert tables.states() == {job_id: ("dead", "rejected")}


@pytest.mark.parametrize("begun", [False, True])
async def test_without_keys_a_crash_is_held_only_if_the_intent_was_written(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    by_hand: ByHand,
    forgetful: ScriptedGateway,
    begun: bool,
) -> None:
    """Before the intent nothing can have left; after it, who knows."""
    job_id = enqueue()
    job = await by_hand.claim_one()
    if begun:
        await by_hand.begun(job)
    tables.expire_leases()
    assert await drain(database_url, forgetful) == 0
    assert tables.states() == {job_id: ("held", "no_memory") if begun else DONE}
    assert len(forgetful.calls) == (0 if begun else 1)


async def test_without_keys_a_topic_may_choose_to_repeat(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """Chosen per topic: rather twice than not at all."""
    gateway = ScriptedGateway(memory_seconds=None, repeat_unknown=True)
    gateway.plan("k", ANSWER_LOST)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert gateway.accepted["k"] == 2
    assert tables.states() == {job_id: DONE}


async def test_without_keys_a_later_refusal_proves_nothing_about_an_earlier_try(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """The first try may have been accepted, the repeat is refused: held, not dead."""
    gateway = ScriptedGateway(memory_seconds=None, repeat_unknown=True)
    gateway.plan("k", ANSWER_LOST, REFUSES)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert tables.states() == {job_id: ("held", "earlier_try_unknown")}


@pytest.mark.parametrize(
    ("age_seconds", "repeated"),
    [(HOUR - 1.0, True), (HOUR + 1.0, False), (25 * HOUR, False)],
)
async def test_a_repeat_must_end_inside_the_providers_memory(
    database_url: str, enqueue: Enqueue, tables: Tables, age_seconds: float, repeated: bool
) -> None:
    """Age counts from the first open try, and the deadline of the repeat counts, too (case-03)."""
    gateway = ScriptedGateway(memory_seconds=HOUR)
    gateway.plan("k", ANSWER_LOST)
    job_id = enqueue()
    await _first_try(database_url, gateway)
    tables.age_open_effects(age_seconds)
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == (2 if repeated else 1)
    assert gateway.accepted["k"] == 1
    assert tables.states() == {job_id: DONE if repeated else ("held", "memory_lapsed")}


async def test_the_deadline_of_the_repeat_itself_must_fit_into_the_memory(
    enqueue: Enqueue, tables: Tables, database_url: str
) -> None:
    """0.5 s of deadline, 0.3 s of memory left: the answer might come after the key is forgotten."""
    policy = replace(POLICY, memory_seconds=HOUR)
    async with ByHand(database_url, policy=policy) as one:
        enqueue()
        await one.begun(await one.claim_one())
        tables.age_open_effects(HOUR - 0.3)
        tables.expire_leases()
        job = await one.claim_crashed()
        assert job is not None
        outcome = await one.begin(job)
    assert getattr(outcome, "reason", None) == "memory_lapsed"


async def test_memory_that_lapses_after_the_begin_keeps_the_call_from_starting(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """The last check before the first byte asks about the memory as well as about the lease."""
    gateway = ScriptedGateway(memory_seconds=3.0)
    slow = Step(accepts=True, before=lambda: asyncio.sleep(2.4))
    gateway.plan("k", ANSWER_LOST, slow)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert gateway.not_started == ["k"]
    assert len(gateway.calls) == 1
    assert tables.states() == {job_id: ("held", "memory_lapsed")}


async def test_the_age_counts_from_the_earliest_request_that_may_have_been_accepted(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """A later try does not make the provider remember the first one for longer."""
    gateway = ScriptedGateway(memory_seconds=HOUR)
    gateway.plan("k", FAILS, UNREACHED, UNAVAILABLE, *[FAILS] * 100)
    enqueue()
    assert await drain(database_url, gateway, timeout=0.6) == 1
    effect = tables.effect("k")
    assert effect["open_since"] == effect["first_attempt_at"]
    assert effect["requests_sent"] >= 3


async def test_a_first_try_that_never_left_starts_no_clock(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """An outage of a day before the first byte: nothing has lapsed, the e-mail goes out."""
    gateway = ScriptedGateway(memory_seconds=HOUR)
    gateway.plan("k", UNREACHED)
    job_id = enqueue()
    await _first_try(database_url, gateway)
    assert tables.effect("k")["open_since"] is None
    tables.connection.execute(
        "UPDATE outbox.effect SET first_attempt_at = first_attempt_at - interval '1 day',"
        " last_attempt_at = last_attempt_at - interval '1 day'"
    )
    assert await drain(database_url, gateway) == 0
    assert tables.states() == {job_id: DONE}


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Australia/Lord_Howe"])
async def test_an_age_is_the_same_in_every_session_time_zone(
    database_url: str, enqueue: Enqueue, tables: Tables, zone: str
) -> None:
    """Across a change to summer time a calendar day has 23 hours; a provider's has 24 (case-65)."""
    separator = "&" if "?" in database_url else "?"
    async with ByHand(f"{database_url}{separator}options=-c%20timezone%3D{zone}") as one:
        enqueue()
        job = await one.claim_one()
        await one.begun(job)
        tables.age_open_effects(200 * 24 * HOUR)
        (effect,) = await one.connection.fetch(
            Effect, "read_effects", job_ids=[job.id], effect_keys=["k"]
        )
    assert effect.open_seconds == pytest.approx(200 * 24 * HOUR, abs=5)


async def test_jobs_beside_a_held_effect_are_held_too_and_make_no_call(
    database_url: str, enqueue: Enqueue, tables: Tables, forgetful: ScriptedGateway
) -> None:
    """A second job of the key waits beside the first; one decision will settle both."""
    forgetful.plan("k", ANSWER_LOST)
    first = enqueue()
    assert await drain(database_url, forgetful) == 0
    second = enqueue()
    assert await drain(database_url, forgetful) == 0
    assert len(forgetful.calls) == 1
    assert [state for state, _ in tables.states().values()] == ["held", "held"]
    assert sorted(tables.states()) == [first, second]


async def test_a_late_acceptance_releases_every_job_beside_the_held_effect(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, database_url: str, forgetful: ScriptedGateway
) -> None:
    """Given up for lost, and then the first holder comes back with the provider's id."""
    first = enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job)
    tables.expire_leases()
    assert await drain(database_url, forgetful) == 0
    second = enqueue()
    assert await drain(database_url, forgetful) == 0
    accepted = Outcome(
        JobAction.DONE,
        effect_state=EffectState.DELIVERED,
        requests_seen=1,
        nothing_open=True,
        message_id="late",
    )
    assert (await by_hand.settle(job, accepted)).effect_written
    assert await drain(database_url, forgetful) == 0
    assert forgetful.calls == []
    assert tables.states() == {first: DONE, second: ("done", "duplicate")}
    assert tables.effect("k")["provider_message_id"] == "late"


async def _first_try(database_url: str, gateway: ScriptedGateway) -> None:
    """Let a consumer make the first try of the one job, and stop it before the second."""
    one = consumer(database_url, gateway)

    async def stop_after_it() -> None:
        one.stop()

    gateway.script["k"][0] = replace(gateway.script["k"][0], before=stop_after_it)
    await asyncio.wait_for(one.run(), 20)
