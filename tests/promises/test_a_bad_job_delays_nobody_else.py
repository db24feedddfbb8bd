"""Promise 9: a bad job delays nobody else, in the same batch or after it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from outbox import Outbox
from outbox.job import Job, Request
from outbox.outcome import Meaning
from tests.promises.conftest import Tables
from tests.promises.scripted import FAILS, REFUSES, TOPIC, ScriptedGateway, Step, consumer, drain
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue

DONE = ("done", "delivered")
#: A lease that no test here can wait out: whoever needs recovery fails.
LONG: dict[str, Any] = {"lease_seconds": 600.0, "heartbeat_seconds": 0.5}


class Trips(ScriptedGateway):
    """Raises what nobody has foreseen, for one key."""

    async def render(self, job: Job) -> Request:
        if job.effect_key == "k-trips":
            raise RuntimeError("a bug in somebody's code")
        return await super().render(job)


async def test_a_batch_with_every_kind_of_bad_job_sends_all_others_in_its_first_pass(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Ten jobs, five of them bad in ways of their own: five go out without waiting (case-39)."""
    ids = {n: enqueue(f"k-{n}") for n in (0, 2, 4, 6, 8)}
    enqueue("k-0-twin", {"n": 0})
    unrenderable = enqueue("k-unrenderable")
    unknown = enqueue("k-unknown", topic="email.nobody_serves_this")
    conflicting = enqueue("k-0", {"n": "another"})
    refused = enqueue("k-refused")
    unspeakable = enqueue("k-unspeakable")
    gateway.unrenderable.add("k-unrenderable")
    gateway.plan("k-refused", REFUSES)
    gateway.plan(
        "k-unspeakable",
        Step(Meaning.REFUSED, reason="http_422", detail="a NUL \x00 and half a pair \ud800 " * 99),
    )
    assert await drain(database_url, gateway, **LONG) == 0
    states = tables.states()
    assert {states[id_] for id_ in ids.values()} == {DONE}
    assert states[unrenderable] == ("dead", "unrenderable")
    assert states[conflicting] == ("dead", "effect_key_conflict")
    assert states[refused] == states[unspeakable] == ("dead", "rejected")
    assert states[unknown] == ("ready", None)
    assert {call.in_flight > 0 for call in gateway.calls} == {True}


async def test_a_job_of_a_topic_that_nobody_serves_is_left_alone(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Not claimed, not counted, not dead: it waits for the consumer that knows it (case-55)."""
    before = tables.job(enqueue("k-new", topic="email.not_yet"))
    enqueue("k")
    assert await drain(database_url, gateway, **LONG) == 0
    assert before is not None
    assert tables.job(before["id"]) == before
    newer = ScriptedGateway(topics=(TOPIC, "email.not_yet"))
    assert await drain(database_url, newer, **LONG) == 0
    assert tables.states()[before["id"]] == DONE


async def test_the_reason_of_an_unrenderable_job_can_be_read(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Dead at once, with what is wrong, and no call."""
    gateway.unrenderable.add("k")
    enqueue()
    assert await drain(database_url, gateway) == 0
    (row,) = tables.rows("SELECT state, reason, detail, attempts FROM outbox.job_status")
    assert row["state"] == "dead"
    assert row["detail"] == "payload.to: missing"
    assert gateway.calls == []
    assert tables.effects() == {}


async def test_an_unforeseen_error_harms_its_own_job_alone(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """A bug that raises what it must not: batch mates go out, the job ends at its cap."""
    gateway = Trips(max_attempts=2)
    bad = enqueue("k-trips")
    good = [enqueue(f"k-{n}") for n in range(5)]
    one = consumer(database_url, gateway, lease_seconds=1.2, heartbeat_seconds=0.3)
    running = asyncio.create_task(one.run(drain=True, timeout_seconds=20))
    await aeventually(lambda: _all_done(tables, good))
    row = tables.job(bad)
    assert row is not None
    assert row["claim_version"] == 1, "they did not wait for the bad job's lease to run out"
    assert await running == 0
    assert tables.states()[bad] == ("dead", "max_attempts")


@pytest.mark.parametrize("statement", ["settle", "begin"])
async def test_a_row_that_the_database_refuses_takes_no_batch_mate_along(
    own_database_url: str, gateway: ScriptedGateway, statement: str
) -> None:
    """One row's write violates something: the batch is tried again row by row (case-39)."""
    event = "UPDATE" if statement == "settle" else "INSERT"
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)
        _trigger(
            connection,
            f"AFTER {event}",
            "IF NEW.effect_key = 'k-3' THEN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END IF;",
        )
        ids = _enqueue(connection, 10)
        one = consumer(own_database_url, gateway, **LONG)
        running = asyncio.create_task(one.run())
        good = [id_ for n, id_ in enumerate(ids) if n != 3]
        await aeventually(lambda: _all_done(tables, good), timeout=5)
        one.stop()
        await running
        assert tables.states()[ids[3]] == ("running", None)
    assert len(gateway.calls) == (10 if statement == "settle" else 9)


async def test_a_settling_that_fails_for_a_moment_is_tried_again_and_sends_nothing_twice(
    own_database_url: str, gateway: ScriptedGateway
) -> None:
    """A deadlock, then a timeout, then it passes: one call, attempt one, no error (case-21)."""
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)
        connection.execute("CREATE SEQUENCE tries")
        _trigger(
            connection,
            "AFTER UPDATE",
            "CASE nextval('tries') WHEN 1 THEN RAISE EXCEPTION 'no' USING ERRCODE = '40P01';"
            " WHEN 2 THEN RAISE EXCEPTION 'no' USING ERRCODE = '57014'; ELSE NULL; END CASE;",
        )
        (id_,) = _enqueue(connection, 1)
        assert await drain(own_database_url, gateway, **LONG) == 0
        assert tables.states() == {id_: DONE}
        assert tables.effect("k-0")["claim_version"] == 1
    assert len(gateway.calls) == 1


async def test_a_job_that_fails_for_ever_does_not_stop_those_behind_it(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """With one slot and the bad job always first in line: thirty others still go out."""
    gateway = ScriptedGateway(max_attempts=1_000_000)
    enqueue("k-bad")
    gateway.plan("k-bad", *[FAILS] * 100_000)
    good = [enqueue(f"k-{n}") for n in range(30)]
    one = consumer(database_url, gateway, concurrency=1, **LONG)
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _all_done(tables, good), timeout=20)
    one.stop()
    await running
    assert len(gateway.accepted) == 30


async def test_a_bulk_of_another_topic_stands_in_nobodys_way(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Five thousand jobs of a topic that is served elsewhere, before ours: ours goes at once."""
    enqueue("seed", topic="email.bulk")
    tables.connection.execute(
        "INSERT INTO outbox.job (id, topic, position, effect_key, payload, payload_fingerprint)"
        " SELECT n, 'email.bulk', n, 'bulk-' || n, '{}', payload_fingerprint"
        " FROM outbox.job, generate_series(10, 5000) AS n"
    )
    tables.connection.execute("SELECT setval('outbox.job_position', 5001)")
    job_id = enqueue()
    assert await drain(database_url, gateway, timeout=2) == 0
    assert tables.states()[job_id] == DONE
    tables.connection.execute("DELETE FROM outbox.job")
    tables.connection.execute("VACUUM outbox.job")


async def test_a_payload_of_a_newer_producer_is_still_its_own_jobs_matter(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Deep, long and strange payloads arrive as they were written (case-38)."""
    payload = {"x": "\\u0000", "y": "C:\\u0000dir", "z": "\U0001f600" * 1_000, "deep": [[[[{}]]]]}
    enqueue("k", payload)
    gateway.template = "{payload}"
    assert await drain(database_url, gateway) == 0
    assert json.loads(gateway.calls[0].body) == payload


def _trigger(connection: psycopg.Connection, when: str, body: str) -> None:
    connection.execute(
        f"CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {body}"
        " RETURN NULL; END $$".encode()
    )
    trigger = f"CREATE TRIGGER fault {when} ON outbox.effect"
    connection.execute(f"{trigger} FOR EACH ROW EXECUTE FUNCTION fault()".encode())


def _enqueue(connection: psycopg.Connection, count: int) -> list[int]:
    with connection.transaction():
        return [Outbox().enqueue(connection, TOPIC, {}, effect_key=f"k-{n}") for n in range(count)]


async def _all_done(tables: Tables, ids: list[int]) -> bool:
    states = tables.states()
    return all(states[id_] == DONE for id_ in ids)
