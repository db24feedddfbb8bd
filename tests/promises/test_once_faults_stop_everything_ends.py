"""Promise 14: once faults stop, all ends within lease, full scan and backoff, or waits by name."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from outbox import Outbox
from outbox.errors import OutboxError
from tests.promises.by_hand import ByHand
from tests.promises.conftest import Tables
from tests.promises.scripted import (
    ANSWER_LOST,
    TOPIC,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue

DONE = ("done", "delivered")
LEASE_SECONDS = 0.9
SETTINGS: dict[str, Any] = {
    "lease_seconds": LEASE_SECONDS,
    "heartbeat_seconds": 0.2,
    "poll_seconds": 0.05,
}
#: Lease, a full scan (twice the poll), the longest backoff, and room for a slow machine.
BOUND_SECONDS = LEASE_SECONDS + 0.1 + 0.05 + 2.0


@pytest.mark.parametrize("connection_name", ["claim", "begin", "settle", "heartbeat", "listen"])
async def test_work_goes_on_after_any_one_connection_is_killed(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    gateway: ScriptedGateway,
    connection_name: str,
) -> None:
    """Each in turn, idle and in use: no part of the consumer stays dead unnoticed (case-45)."""
    one = consumer(database_url, gateway, **SETTINGS)
    running = asyncio.create_task(one.run())
    for round_ in range(3):
        first = enqueue(f"k-{round_}-before")
        await aeventually(partial(_has, tables, first, DONE))
        _kill(tables, f"outbox {connection_name} %")
        second = enqueue(f"k-{round_}-after")
        await aeventually(partial(_has, tables, second, DONE), timeout=BOUND_SECONDS)
    assert not running.done()
    one.stop()
    assert await running == 0
    assert set(gateway.accepted.values()) == {1}
    assert len(gateway.accepted) == 6


async def test_a_storm_of_killed_connections_loses_and_repeats_nothing(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """All sessions ended again and again under load; then quiet: all are sent once, in time."""
    ids = [enqueue(f"k-{n}") for n in range(80)]
    gateway.otherwise = Step(accepts=True, during=lambda: asyncio.sleep(0.02))
    one = consumer(database_url, gateway, concurrency=4, **SETTINGS)
    running = asyncio.create_task(one.run(drain=True, timeout_seconds=30))
    for _ in range(8):
        await asyncio.sleep(0.05)
        _kill(tables, "outbox %")
    quiet = time.monotonic()
    assert await running == 0
    # 80 calls of 0.02 s in four lanes, the pauses after each outage, and the bound.
    assert time.monotonic() - quiet < BOUND_SECONDS + 3.0
    assert tables.states() == dict.fromkeys(ids, DONE)
    assert set(gateway.accepted.values()) == {1}


@pytest.mark.parametrize("where", ["claim", "heartbeats", "listen", "begins", "settles"])
async def test_a_part_that_fails_for_good_ends_the_consumer_loudly(
    database_url: str, enqueue: Enqueue, gateway: ScriptedGateway, where: str
) -> None:
    """An unforeseen error in one of the loops: no healthy-looking zombie (case-45)."""
    one = consumer(database_url, gateway)

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("unforeseen")

    target: object = {
        "claim": one._intake,
        "heartbeats": one._wake,
        "listen": one._wake,
        "begins": one._begins,
        "settles": one._settles,
    }[where]
    attribute = {"claim": "take", "heartbeats": "seen", "listen": "_listen_once"}.get(
        where, "_serve"
    )
    setattr(target, attribute, fails)
    enqueue()
    with pytest.raises((RuntimeError, OutboxError, asyncio.CancelledError)):
        await asyncio.wait_for(one.run(), 10)


_REFUSE_OTHER_LEVELS = """
CREATE FUNCTION refuse_other_levels() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'SKIP LOCKED skips nothing here';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER refuse_other_levels BEFORE UPDATE ON outbox.job
    FOR EACH ROW EXECUTE FUNCTION refuse_other_levels();
"""


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_a_role_with_another_isolation_level_loses_and_repeats_nothing(
    own_database_url: str, gateway: ScriptedGateway, isolation: str
) -> None:
    """Four consumers and two hundred jobs under a default that breaks SKIP LOCKED (case-43)."""
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)
        connection.execute(_REFUSE_OTHER_LEVELS)
        _set(connection, "default_transaction_isolation", isolation)
    with psycopg.connect(own_database_url) as producer:
        ids = [Outbox().enqueue(producer, TOPIC, {}, effect_key=f"k-{n}") for n in range(200)]
    consumers = [consumer(own_database_url, gateway, concurrency=20) for _ in range(4)]
    codes = await asyncio.gather(*(one.run(drain=True, timeout_seconds=30) for one in consumers))
    assert codes == [0, 0, 0, 0]
    assert len(gateway.calls) == 200
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)
        assert tables.states() == dict.fromkeys(ids, DONE)


async def test_short_timeouts_of_the_role_and_a_long_lock_lose_and_repeat_nothing(
    own_database_url: str, gateway: ScriptedGateway
) -> None:
    """lock_timeout 100 ms, statement_timeout 300 ms, a second of ACCESS EXCLUSIVE (case-44)."""
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)
        limits = {"lock_timeout": "100ms", "statement_timeout": "300ms"}
        for name, value in limits.items():
            _set(connection, name, value)
        with connection.transaction():
            ids = [Outbox().enqueue(connection, TOPIC, {}, effect_key=f"k-{n}") for n in range(5)]

        async def lock_everything() -> None:
            await blocker.execute("SET lock_timeout = 0")
            await blocker.execute("LOCK TABLE outbox.job, outbox.effect IN ACCESS EXCLUSIVE MODE")

        async with await psycopg.AsyncConnection.connect(own_database_url) as blocker:
            gateway.plan("k-0", Step(accepts=True, during=lock_everything))
            one = consumer(own_database_url, gateway, **SETTINGS)
            running = asyncio.create_task(one.run(drain=True, timeout_seconds=30))
            await aeventually(lambda: _true(gateway.accepted["k-0"]))
            await asyncio.sleep(1.2)
            assert not running.done()
            await blocker.rollback()
        assert await running == 0
        assert tables.states() == dict.fromkeys(ids, DONE)
    assert set(gateway.accepted.values()) == {1}
    # The call that was settled late met a fault of the database, not of the provider.
    assert len(gateway.calls) == 5


async def test_a_migration_under_a_running_consumer_repeats_nothing(
    own_database_url: str, gateway: ScriptedGateway
) -> None:
    """A column changes its type during a call: plans break once, work goes on (case-47)."""
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)

        async def migrate() -> None:
            connection.execute("ALTER TABLE outbox.job ALTER COLUMN max_attempts TYPE bigint")

        with connection.transaction():
            ids = [Outbox().enqueue(connection, TOPIC, {}, effect_key=f"k-{n}") for n in range(20)]
        gateway.plan("k-12", Step(accepts=True, during=migrate))
        assert await drain(own_database_url, gateway, concurrency=1) == 0
        assert tables.states() == dict.fromkeys(ids, DONE)
    assert len(gateway.calls) == 20


async def test_a_job_that_commits_late_below_the_floor_is_found_by_a_full_scan(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """It took its position early and committed long after its followers were done (case-26)."""
    one = consumer(database_url, gateway, **SETTINGS)
    running = asyncio.create_task(one.run())
    with psycopg.connect(database_url) as late:
        late_id = Outbox().enqueue(late, TOPIC, {}, effect_key="k-late")
        for n in range(20):
            id_ = enqueue(f"k-{n}")
        await aeventually(lambda: _has(tables, id_, DONE))
        late.commit()
        await aeventually(lambda: _has(tables, late_id, DONE), timeout=1)
    one.stop()
    assert await running == 0


async def test_a_bulk_that_commits_late_goes_before_the_work_that_came_after_it(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Thirty early positions commit late, hundreds wait: the floor goes down again."""
    gateway.otherwise = Step(accepts=True, during=lambda: asyncio.sleep(0.01))
    with psycopg.connect(database_url) as late, psycopg.connect(database_url) as producer:
        for n in range(30):
            Outbox().enqueue(late, TOPIC, {}, effect_key=f"k-late-{n}")
        for n in range(400):
            Outbox().enqueue(producer, TOPIC, {}, effect_key=f"k-{n}")
        producer.commit()
        one = consumer(database_url, gateway, concurrency=5, **SETTINGS)
        running = asyncio.create_task(one.run())
        await aeventually(lambda: _true(len(gateway.accepted) >= 20))
        late.commit()
        await aeventually(lambda: _true(all(f"k-late-{n}" in gateway.accepted for n in range(30))))
        assert len(gateway.accepted) < 400
    one.stop()
    assert await running == 0


async def test_polls_do_the_work_when_no_wake_up_arrives(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """LISTEN is a hint only: deaf, the consumer is a poll later, no more (case-49)."""
    one = consumer(database_url, gateway, **SETTINGS)

    async def deaf() -> None:
        await asyncio.Event().wait()

    one._wake.listen = deaf  # type: ignore[method-assign]
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _sleeps(tables))
    job_id = enqueue()
    await aeventually(lambda: _has(tables, job_id, DONE), timeout=1)
    one.stop()
    assert await running == 0


async def test_a_wake_up_shortens_the_longest_poll(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """A poll of a minute, and the job goes out in a moment: the hint works, too."""
    one = consumer(database_url, gateway, poll_seconds=60.0)
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _sleeps(tables))
    await aeventually(lambda: _true(one._wake.listening))
    job_id = enqueue()
    await aeventually(lambda: _has(tables, job_id, DONE), timeout=2)
    one.stop()
    assert await running == 0


async def test_jobs_of_every_stage_end_after_a_crash_of_all_consumers(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Claimed, begun, ready, scheduled for soon: one new consumer ends them all in time."""
    async with ByHand(database_url, lease_seconds=LEASE_SECONDS) as crashes:
        ids = [enqueue(f"k-{n}") for n in range(6)]
        jobs = sorted(await crashes.claim(4), key=lambda job: job.id)
        for job in jobs[:2]:
            await crashes.begun(job)
    soon = datetime.now(UTC) + timedelta(seconds=0.3)
    ids.append(enqueue("k-soon", available_at=soon))
    gateway.plan("k-5", ANSWER_LOST)
    start = time.monotonic()
    one = consumer(database_url, gateway, **SETTINGS)
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _all(tables, ids, DONE), timeout=BOUND_SECONDS)
    assert time.monotonic() - start >= 0.3
    one.stop()
    assert await running == 0


async def test_a_slot_that_a_crash_has_taken_is_free_again(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """One slot, one crash in it, five jobs behind: no limit counts the dead (case-53)."""
    ids = [enqueue(f"k-{n}") for n in range(6)]
    async with ByHand(database_url, lease_seconds=0.3) as crashes:
        await crashes.claim(1)
    assert await drain(database_url, gateway, concurrency=1, **SETTINGS) == 0
    assert tables.states() == dict.fromkeys(ids, DONE)
    assert {call.in_flight for call in gateway.calls} == {1}


def _kill(tables: Tables, application_name: str) -> None:
    tables.connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE %s AND datname = current_database()",
        [application_name],
    )


def _set(connection: psycopg.Connection, name: str, value: str) -> None:
    database = connection.info.dbname
    connection.execute(f"ALTER DATABASE \"{database}\" SET {name} = '{value}'".encode())


async def _has(tables: Tables, job_id: int, state: tuple[str, str | None]) -> bool:
    return tables.states()[job_id] == state


async def _all(tables: Tables, ids: list[int], state: tuple[str, str | None]) -> bool:
    states = tables.states()
    return all(states[id_] == state for id_ in ids)


async def _sleeps(tables: Tables) -> bool:
    return bool(tables.rows("SELECT 1 FROM outbox.consumer WHERE sleeps_until > clock_timestamp()"))


async def _true(answer: object) -> object:
    return answer
