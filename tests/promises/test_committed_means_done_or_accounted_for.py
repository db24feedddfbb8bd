"""Promise 1: every committed job ends in a known way, or waits visibly for a named thing."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox import Outbox
from outbox.backoff import Backoff
from outbox.operator import Operator
from outbox.outcome import JobAction, Meaning, Outcome, Policy
from outbox.resolve import Resolution, resolve
from tests.promises.by_hand import ByHand, delivered
from tests.promises.scripted import (
    DAY,
    FAILS,
    REFUSES,
    TOPIC,
    UNAVAILABLE,
    WRONG_ACCOUNT,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

#: Every state that the view for people may show.
STATES = {
    "ready", "scheduled", "backing_off", "running", "blocked", "held", "dead", "cancelled", "done",
}  # fmt: skip


def in_an_hour() -> datetime:
    """A moment that no test waits for."""
    return datetime.now(UTC) + timedelta(hours=1)


async def test_every_fate_that_a_job_can_have_is_shown_under_its_id(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """One job of each kind: after the work each is there, once, with its state and its reason."""
    gateway = ScriptedGateway(memory_seconds=None)
    past = datetime.now(UTC) - timedelta(seconds=1)
    gateway.unrenderable.add("k-unrenderable")
    gateway.plan("k-refused", REFUSES)
    gateway.plan("k-unknown", FAILS)
    expected = {
        enqueue("k-plain"): ("done", "delivered"),
        enqueue("k-plain"): ("done", "duplicate"),
        enqueue("k-plain", {"another": "payload"}): ("dead", "effect_key_conflict"),
        enqueue("k-unrenderable"): ("dead", "unrenderable"),
        enqueue("k-refused"): ("dead", "rejected"),
        enqueue("k-unknown"): ("held", "no_memory"),
        enqueue("k-unknown"): ("held", "held"),
        enqueue("k-expired", expires_at=past): ("cancelled", "expired"),
        enqueue("k-later", available_at=in_an_hour()): ("scheduled", None),
        enqueue("k-first", ordering_key="o", available_at=in_an_hour()): ("scheduled", None),
        enqueue("k-second", ordering_key="o"): ("blocked", None),
        enqueue("k-elsewhere", topic="email.elsewhere"): ("ready", None),
    }
    assert await drain(database_url, gateway, concurrency=1) == 0
    assert tables.states() == expected
    assert gateway.accepted == {"k-plain": 1}


async def test_a_job_on_its_way_is_shown_at_every_moment(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Ready, running, backing off, running, done: no moment without it, and never twice."""
    seen: list[str] = []

    async def look() -> None:
        seen.append(tables.states()[job_id][0])

    gateway.the_policy = Policy(DAY, False, 5, Backoff(0.5, 0.5))
    gateway.plan("k", Step(Meaning.UNAVAILABLE, during=look), Step(accepts=True, during=look))
    job_id = enqueue()
    await look()
    running = asyncio.create_task(drain(database_url, gateway))
    while not running.done():
        await look()
        await asyncio.sleep(0.01)
    await look()
    assert await running == 0
    runs = [state for n, state in enumerate(seen) if n == 0 or state != seen[n - 1]]
    assert runs[0] == "ready"
    assert runs[-1] == "done"
    assert [state for state in runs if state != "ready"] == [
        "running", "backing_off", "running", "done"
    ]  # fmt: skip


async def test_a_paused_lane_keeps_its_jobs_and_says_so(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Wrong account: every job is still there, none dead, and the drain answers no."""
    ids = {enqueue(f"k-{n}") for n in range(10)}
    gateway.otherwise = WRONG_ACCOUNT
    assert await drain(database_url, gateway) == 1
    assert tables.states().keys() == ids
    assert {state for state, _ in tables.states().values()} <= {"ready", "backing_off"}


async def test_a_drain_that_runs_out_of_time_says_so(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Exit code 0 means that nothing is left; with something left it is 1."""
    enqueue()
    gateway.otherwise = UNAVAILABLE
    assert await drain(database_url, gateway, timeout=0.4) == 1
    assert [state for state, _ in tables.states().values()] in (["ready"], ["backing_off"])


async def test_a_drain_waits_for_other_consumers_jobs_too(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Somebody else's running job may crash: the drain stays until it has ended."""
    enqueue()
    async with ByHand(database_url, lease_seconds=0.5) as crashes:
        await crashes.claim_one()
    assert await drain(database_url, gateway) == 0
    assert gateway.accepted["k"] == 1


@pytest.mark.parametrize("state", ["rejected", "given_up", "delivered"])
async def test_an_acceptance_that_finds_its_effect_settled_still_ends_its_job_visibly(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, state: str
) -> None:
    """While our call was under way another job of the key had it settled: ours may not vanish."""
    job_id = enqueue()
    job = await by_hand.claim_one()
    attempt = await by_hand.begun(job)
    tables.connection.execute(
        "UPDATE outbox.effect SET state = %s, job_id = job_id + 1, request = NULL,"
        " settled_at = clock_timestamp(), requests_sent = requests_sent + 1",
        [state],
    )
    await by_hand.settle(job, delivered(attempt))
    for again in await by_hand.claim():
        verdict = await by_hand.begin(again)
        assert isinstance(verdict, Outcome)
        await by_hand.settle(again, verdict)
    expected = ("done", "duplicate") if state == "delivered" else ("dead", state)
    assert tables.states()[job_id] == expected


@pytest.mark.parametrize("resolution", list(Resolution))
async def test_jobs_beside_a_decided_effect_all_end_visibly(
    database_url: str, enqueue: Enqueue, tables: Tables, resolution: Resolution
) -> None:
    """One decision about a held effect settles each job that waited beside it."""
    gateway = ScriptedGateway(memory_seconds=None)
    gateway.plan("k", FAILS)
    ids = [enqueue() for _ in range(3)]
    assert await drain(database_url, gateway) == 0
    with psycopg.connect(database_url, autocommit=True) as connection:
        assert resolve(Operator(connection), ["k"], resolution)[0].done
    assert await drain(database_url, gateway) == 0
    states = tables.states()
    assert sorted(states) == ids
    if resolution is Resolution.GIVE_UP:
        assert set(states.values()) == {("dead", "given_up")}
    else:
        assert sorted(reason or "" for _, reason in states.values()) == [
            "delivered", "duplicate", "duplicate"
        ]  # fmt: skip
    assert len(gateway.calls) == (2 if resolution is Resolution.SEND_AGAIN else 1)


async def test_the_jobs_of_many_producers_at_once_all_end(
    database_url: str, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Commits, rollbacks and savepoints at once, two consumers: the committed ones, exactly."""
    committed: list[int] = []

    async def produce(number: int) -> None:
        async with await psycopg.AsyncConnection.connect(database_url) as connection:
            for n in range(25):
                job_id = await Outbox().enqueue(
                    connection, TOPIC, {"n": n}, effect_key=f"k-{number}-{n}"
                )
                if n % 3 == 0:
                    await connection.rollback()
                else:
                    await connection.commit()
                    committed.append(job_id)

    consumers = [consumer(database_url, gateway, concurrency=10) for _ in range(2)]
    running = [asyncio.create_task(one.run()) for one in consumers]
    await asyncio.gather(*(produce(number) for number in range(8)))
    await aeventually(lambda: _none_left(tables))
    for one in consumers:
        one.stop()
    assert await asyncio.gather(*running) == [0, 0]
    assert tables.states() == dict.fromkeys(sorted(committed), ("done", "delivered"))
    assert len(gateway.calls) == len(committed) == 8 * 16


def test_the_view_shows_no_state_that_people_were_not_told_of(tables: Tables) -> None:
    """The states of the view are those of the docs; a new one needs a word there, too."""
    (row,) = tables.rows("SELECT pg_get_viewdef('outbox.job_status'::regclass) AS text")
    ended = {action.value for action in JobAction} & {"dead", "cancelled"}
    shown = {state for state in STATES if f"'{state}'" in row["text"]} | ended
    assert shown == STATES


async def _none_left(tables: Tables) -> bool:
    return tables.rows("SELECT count(*) AS n FROM outbox.job") == [{"n": 0}]
