"""Promise 3: one key, at most one accepted e-mail while the provider remembers; no spare requests.

No more requests leave than one, plus one for each fault or refusal that the effect met. The counts
are the provider's own.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from outbox.job import Attempt, EffectState
from outbox.outcome import JobAction, Meaning, Outcome
from tests.promises.by_hand import ByHand
from tests.promises.scripted import (
    ACCEPT,
    ANSWER_LOST,
    FAILS,
    REFUSES,
    THROTTLED,
    UNAVAILABLE,
    UNREACHED,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

DONE = ("done", "delivered")
DUPLICATE = ("done", "duplicate")


async def test_two_jobs_of_a_key_in_one_claim_batch_send_one_email(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Both are claimed, begun and settled side by side: the lower id sends, the other is told."""
    first, second = enqueue(), enqueue()
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == gateway.accepted["k"] == 1
    assert tables.states() == {first: DONE, second: DUPLICATE}


async def test_a_hundred_jobs_of_a_key_in_one_claim_batch_send_one_email(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """However many ask for it, the effect is had once."""
    for _ in range(100):
        enqueue()
    assert await drain(database_url, gateway, concurrency=100) == 0
    assert len(gateway.calls) == 1
    assert sorted(tables.states().values()) == [DONE] + [DUPLICATE] * 99


async def test_two_jobs_of_a_key_at_two_consumers_send_one_email(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """Both begin at the same moment: the ledger's key lets one of them through."""
    for n in range(20):
        enqueue(f"k-{n}")
        enqueue(f"k-{n}")
        (ours,), (theirs,) = await by_hand.claim(1), await other.claim(1)
        begun = await asyncio.gather(by_hand.begin(ours), other.begin(theirs))
        assert sorted(isinstance(one, Attempt) for one in begun) == [False, True]
    assert {effect["requests_sent"] for effect in tables.effects().values()} == {1}


async def test_a_job_that_comes_while_its_key_is_in_flight_waits_for_the_end(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """The second job finds the first one's call under way, and ends as its duplicate."""
    second = 0

    async def enqueue_another() -> None:
        nonlocal second
        second = enqueue()
        await aeventually(lambda: _was_given_back(tables, second))

    gateway.plan("k", Step(accepts=True, during=enqueue_another))
    first = enqueue()
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == 1
    assert tables.states() == {first: DONE, second: DUPLICATE}


async def test_a_job_that_comes_long_after_delivery_sends_nothing(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """The ledger outlives the job, and the provider's memory, too."""
    first = enqueue()
    assert await drain(database_url, gateway) == 0
    tables.connection.execute(
        "UPDATE outbox.effect SET first_attempt_at = first_attempt_at - interval '1 year',"
        " last_attempt_at = last_attempt_at - interval '1 year',"
        " settled_at = settled_at - interval '1 year'"
    )
    second = enqueue()
    assert await drain(database_url, ScriptedGateway(memory_seconds=None)) == 0
    assert len(gateway.calls) == 1
    assert tables.states() == {first: DONE, second: DUPLICATE}


async def test_a_job_that_comes_after_a_refusal_sends_nothing(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """What the provider has refused for good is a person's to retry, not another job's."""
    gateway.plan("k", REFUSES)
    first = enqueue()
    assert await drain(database_url, gateway) == 0
    second = enqueue()
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == 1
    assert gateway.accepted["k"] == 0
    assert tables.states() == {first: ("dead", "rejected"), second: ("dead", "rejected")}


@pytest.mark.parametrize("first_meets", [ACCEPT, REFUSES, ANSWER_LOST])
async def test_another_payload_under_a_used_key_is_an_error_and_sends_nothing(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    gateway: ScriptedGateway,
    first_meets: Step,
) -> None:
    """Two different e-mails under one name: the second is dead with that reason, never sent."""
    gateway.plan("k", first_meets)
    enqueue("k", {"n": 1})
    other = enqueue("k", {"n": 2})
    assert await drain(database_url, gateway) == 0
    assert {call.body for call in gateway.calls} == {b'hello {"n":1}'}
    assert tables.states()[other] == ("dead", "effect_key_conflict")


async def test_the_same_payload_in_another_order_is_no_other_payload(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """JSON objects have no order."""
    enqueue("k", {"a": 1, "b": {"c": [1, 2], "d": None}})
    second = enqueue("k", {"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert await drain(database_url, gateway) == 0
    assert tables.states()[second] == DUPLICATE


async def test_another_topic_under_a_used_key_is_an_error_and_sends_nothing(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """A key names one effect over all topics."""
    gateway = ScriptedGateway(topics=("email.x", "email.y"))
    enqueue("k", topic="email.x")
    other = enqueue("k", topic="email.y")
    assert await drain(database_url, gateway, concurrency=1) == 0
    assert len(gateway.calls) == 1
    assert sorted(state for state, _ in tables.states().values()) == ["dead", "done"]
    assert tables.states()[other] in {("dead", "effect_key_conflict"), DONE}


@pytest.mark.parametrize(
    ("faults", "requests"),
    [
        pytest.param([], 1, id="none"),
        pytest.param([ANSWER_LOST], 2, id="answer lost"),
        pytest.param([ANSWER_LOST, ANSWER_LOST, ANSWER_LOST], 4, id="answer lost three times"),
        pytest.param([FAILS], 2, id="failed"),
        pytest.param([UNAVAILABLE, FAILS, ANSWER_LOST], 4, id="one of each"),
        pytest.param([THROTTLED], 2, id="throttled"),
        pytest.param([UNREACHED, UNREACHED], 1, id="never reached: that is no request"),
        pytest.param([REFUSES], 1, id="refused for good"),
    ],
)
async def test_each_fault_costs_one_request_and_an_acceptance_ends_it(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    gateway: ScriptedGateway,
    faults: list[Step],
    requests: int,
) -> None:
    """Requests at the provider: one, plus one for each fault; in the ledger: no fewer."""
    gateway.plan("k", *faults)
    enqueue()
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == requests
    assert gateway.accepted["k"] == (0 if REFUSES in faults else 1)
    assert tables.effect("k")["requests_sent"] >= requests


async def test_three_consumers_over_many_jobs_and_faults_send_no_spare_request(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Every third answer is lost while three consumers compete: the sums are exact."""
    for n in range(60):
        enqueue(f"k-{n}")
        if n % 3 == 0:
            gateway.plan(f"k-{n}", ANSWER_LOST)
    consumers = [consumer(database_url, gateway, concurrency=5) for _ in range(3)]
    codes = await asyncio.gather(*(one.run(drain=True, timeout_seconds=30) for one in consumers))
    assert codes == [0, 0, 0]
    assert len(gateway.calls) == 80
    assert set(gateway.accepted.values()) == {1}
    assert set(tables.states().values()) == {DONE}


async def test_a_2xx_that_cannot_be_read_is_repeated_once_for_its_id(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Where repeats are replayed, one more request brings the id; then it is believed."""
    garbage = Step(Meaning.ACCEPTED_UNREADABLE, accepts=True, reason="http_200 unreadable")
    gateway.plan("k-once", garbage)
    gateway.plan("k-always", *[garbage] * 9)
    enqueue("k-once")
    enqueue("k-always")
    assert await drain(database_url, gateway) == 0
    assert [len(gateway.calls_of(key)) for key in ("k-once", "k-always")] == [2, 2]
    assert tables.effect("k-once")["provider_message_id"] == "id-k-once-1"
    always = tables.effect("k-always")
    assert (always["state"], always["provider_message_id"]) == ("delivered", None)
    assert always["detail"] == "accepted_without_id"


async def test_a_key_in_use_by_somebody_else_is_held_and_gets_no_new_key(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """409, same key, other body: another environment has used it; a person looks (case-16)."""
    gateway.plan("k", Step(Meaning.KEY_TAKEN, reason="http_409 invalid_idempotent_request"))
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert [call.wire_key for call in gateway.calls] == ["k"]
    assert tables.states() == {job_id: ("held", "key_taken")}


async def test_a_key_in_progress_is_asked_again_and_costs_no_attempt(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """409, in progress: later, with the same key, and never dead by itself (case-16)."""
    gateway = ScriptedGateway(max_attempts=1)
    busy = Step(Meaning.IN_PROGRESS, reason="http_409 concurrent_idempotent_requests")
    gateway.plan("k", ANSWER_LOST, busy, busy, busy)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert gateway.accepted["k"] == 1
    assert tables.states() == {job_id: DONE}


async def test_the_ledger_says_how_often_when_and_under_which_id(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Was it sent, when, how many requests may have reached the provider, under which id."""
    gateway.plan("k", ANSWER_LOST)
    enqueue()
    assert await drain(database_url, gateway) == 0
    effect = tables.effect("k")
    assert effect["state"] == "delivered"
    assert effect["requests_sent"] == 2
    assert effect["provider_message_id"] == "id-k-1"
    assert effect["first_attempt_at"] < effect["last_attempt_at"] <= effect["settled_at"]
    assert effect["request"] is None
    assert len(effect["request_hash"]) == 32


async def test_a_late_acceptance_accounts_for_both_jobs_of_its_key(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """Two jobs of one key were in flight at once; each of them ends under its own id."""
    first = enqueue()
    ours = await by_hand.claim_one()
    await by_hand.begun(ours)
    second = enqueue()
    theirs = await other.claim_one()
    tables.connection.execute(
        "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 second' WHERE id = %s",
        [first],
    )
    attempt = await other.begun(theirs)
    delivered = Outcome(
        JobAction.DONE, effect_state=EffectState.DELIVERED, requests_seen=1, nothing_open=True
    )
    assert (await by_hand.settle(ours, delivered)).effect_written
    again = Outcome(
        JobAction.DONE,
        effect_state=EffectState.DELIVERED,
        requests_seen=attempt.requests_sent,
        nothing_open=True,
    )
    await other.settle(theirs, again)
    for job in await by_hand.claim():
        verdict = await by_hand.begin(job)
        assert isinstance(verdict, Outcome)
        await by_hand.settle(job, verdict)
    assert sorted(tables.states()) == [first, second]
    assert sorted(tables.states().values()) == [DONE, DUPLICATE]


async def _was_given_back(tables: Tables, job_id: int) -> bool:
    row = tables.job(job_id)
    return row is not None and row["last_error"] == "effect_at_work_elsewhere"
