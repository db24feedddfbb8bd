"""Promise 11: an outage spends no attempts, sends only probes, and ends without a stampede."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox import Outbox
from outbox.evidence import Evidence
from outbox.outcome import Meaning
from tests.promises.conftest import Tables
from tests.promises.scripted import (
    ACCEPT,
    FAILS,
    REFUSES,
    THROTTLED,
    TOPIC,
    UNAVAILABLE,
    UNREACHED,
    WRONG_ACCOUNT,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.databases import Databases
    from tests.promises.conftest import Enqueue

DONE = ("done", "delivered")
JOBS = 60

OUTAGES = {
    "refused connections": UNREACHED,
    "503": UNAVAILABLE,
    "500 for everybody": FAILS,
    "timeouts for everybody": replace(FAILS, reason="read_timeout"),
    "429 with Retry-After": THROTTLED,
    "429 without": replace(THROTTLED, retry_after_seconds=None),
    "409 in progress": Step(Meaning.IN_PROGRESS, reason="http_409"),
}


@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES.keys())
async def test_an_outage_kills_no_job_and_all_are_sent_once_after_it(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    monkeypatch: pytest.MonkeyPatch,
    outage: Step,
) -> None:
    """Longer than any job's attempts would last: none dead, held or sent twice (case-36)."""
    monkeypatch.setattr("outbox.lane.PROBE_SECONDS_MAX", 0.05)
    gateway = ScriptedGateway(max_attempts=1)
    for n in range(JOBS):
        enqueue(f"k-{n}")
    asked = 0

    async def count() -> None:
        nonlocal asked
        asked += 1

    gateway.otherwise = replace(outage, before=count)
    one = consumer(database_url, gateway, concurrency=20)
    running = asyncio.create_task(one.run(drain=True, timeout_seconds=30))
    await aeventually(lambda: _true(asked >= 30))
    attempts = tables.rows("SELECT max(attempts) AS most, count(*) AS jobs FROM outbox.job")
    gateway.otherwise = ACCEPT
    assert await running == 0
    # Those in flight at this moment are charged for as long as they are.
    assert attempts in ([{"most": 1, "jobs": JOBS}], [{"most": 0, "jobs": JOBS}])
    assert set(tables.states().values()) == {DONE}
    assert set(gateway.accepted.values()) == {1}
    assert len(gateway.accepted) == JOBS


@pytest.mark.parametrize("outage", [UNREACHED, UNAVAILABLE, FAILS])
async def test_an_outage_sends_only_probes_one_at_a_time_and_ever_less_often(
    database_url: str,
    enqueue: Enqueue,
    outage: Step,
) -> None:
    """A hundred jobs wait; the provider sees a handful of requests, not a hundred."""
    gateway = ScriptedGateway()
    for n in range(100):
        enqueue(f"k-{n}")
    asked = 0

    async def count() -> None:
        nonlocal asked
        asked += 1

    gateway.otherwise = replace(outage, before=count)
    assert await drain(database_url, gateway, concurrency=10, timeout=1.6) == 1
    # Ten that were in flight when it began, then one after 0.05, 0.1, 0.2, 0.4, 0.8 s, where 32
    # would fit that come at a steady pace.
    assert asked <= 10 + 7


async def test_no_stampede_follows_an_outage(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """The flow grows with the answers: one at a time first, then two, then four."""
    gateway = ScriptedGateway()
    for n in range(JOBS):
        enqueue(f"k-{n}")
    gateway.otherwise = UNAVAILABLE
    one = consumer(database_url, gateway, concurrency=20)
    running = asyncio.create_task(one.run(drain=True, timeout_seconds=30))
    await aeventually(lambda: _true(one._lane.down and not one._tasks))
    before = len(gateway.calls)
    gateway.otherwise = replace(ACCEPT, during=lambda: asyncio.sleep(0.02))
    assert await running == 0
    in_flight = [
        call.in_flight for call in gateway.calls[before:] if call.wire_key in gateway.accepted
    ]
    for nth, together in enumerate(in_flight):
        assert together <= max(1, 2 * nth), in_flight


@pytest.mark.parametrize("retry_after", [None, 0.0])
async def test_a_provider_that_throttles_everybody_is_not_hammered(
    database_url: str, enqueue: Enqueue, gateway: ScriptedGateway, retry_after: float | None
) -> None:
    """429 for all, and "come back at once" or no word about it: still no more than probes."""
    for n in range(100):
        enqueue(f"k-{n}")
    gateway.otherwise = replace(THROTTLED, retry_after_seconds=retry_after)
    assert await drain(database_url, gateway, concurrency=10, timeout=1.0) == 1
    # Ten that were in flight together, then one every 0.05 s at most.
    assert len(gateway.calls) <= 10 + 20


async def test_a_throttled_lane_slows_down_and_waits_as_long_as_it_is_told(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Retry-After closes the lane for everybody, not for the one job that heard it."""
    for n in range(20):
        enqueue(f"k-{n}")
    times: list[float] = []

    async def note() -> None:
        times.append(asyncio.get_running_loop().time())

    gateway.plan("k-0", replace(THROTTLED, retry_after_seconds=0.6, before=note))
    gateway.otherwise = replace(ACCEPT, before=note)
    assert await drain(database_url, gateway, concurrency=1) == 0
    assert times[1] - times[0] >= 0.6
    assert len(gateway.calls) == 21
    assert set(tables.states().values()) == {DONE}


async def test_a_wrong_account_pauses_the_lane_and_spends_nobody(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """A wrong key is no job's fault: nothing dead, a handful of requests, and exit code 1."""
    ids = [enqueue(f"k-{n}") for n in range(50)]
    gateway.otherwise = WRONG_ACCOUNT
    assert await drain(database_url, gateway, concurrency=5) == 1
    assert len(gateway.calls) <= 8
    assert {state for state, _ in tables.states().values()} <= {"ready", "backing_off"}
    assert {row["attempts"] for row in tables.rows("SELECT attempts FROM outbox.job")} == {0}
    gateway.otherwise = ACCEPT
    assert await drain(database_url, gateway) == 0
    assert set(gateway.accepted.values()) == {1}
    assert len(tables.states()) == len(ids)


async def test_the_same_refusal_for_everybody_pauses_the_lane_instead_of_emptying_the_queue(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """A field of the sender's is wrong: the provider blames each request, and means the account."""
    for n in range(50):
        enqueue(f"k-{n}")
    gateway.otherwise = REFUSES
    assert await drain(database_url, gateway, concurrency=1) == 1
    states = [state for state, _ in tables.states().values()]
    assert states.count("dead") <= 4
    assert len(gateway.calls) <= 10


async def test_refusals_of_single_jobs_between_good_ones_pause_nothing(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Every other address is wrong: those are dead, the others are sent."""
    ids = [enqueue(f"k-{n}") for n in range(20)]
    for n in range(0, 20, 2):
        gateway.plan(f"k-{n}", REFUSES)
    assert await drain(database_url, gateway, concurrency=1) == 0
    states = tables.states()
    assert [states[id_] for id_ in ids] == [("dead", "rejected"), DONE] * 10


async def test_a_failure_is_the_jobs_own_while_others_are_answered(
    database_url: str, enqueue: Enqueue, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side of the promise: what is no outage does spend its attempts."""
    monkeypatch.setattr("outbox.consumer.Evidence", Evidence)
    gateway = ScriptedGateway(max_attempts=3)
    bad = enqueue("k-bad")
    gateway.plan("k-bad", *[replace(FAILS, during=lambda: asyncio.sleep(0.03))] * 50)
    gateway.otherwise = replace(ACCEPT, during=lambda: asyncio.sleep(0.02))
    for n in range(150):
        enqueue(f"k-{n}")
    assert await drain(database_url, gateway, concurrency=3) == 0
    assert len(gateway.calls_of("k-bad")) == 3
    assert tables.states()[bad] == ("held", "max_attempts")


async def test_one_job_that_fails_for_ever_closes_the_lane_to_nobody(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """A run of failures from one effect is no outage, however long it is."""
    gateway = ScriptedGateway(max_attempts=1_000_000)
    gateway.plan("k-bad", *[FAILS] * 100_000)
    enqueue("k-bad")
    one = consumer(database_url, gateway, concurrency=2)
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _true(len(gateway.calls_of("k-bad")) >= 12))
    assert not one._lane.down
    good = enqueue("k-good")
    await aeventually(lambda: _has(tables, good, DONE))
    one.stop()
    await running


async def test_a_dead_database_spends_nothing_either(
    own_database_url: str, databases: Databases, gateway: ScriptedGateway
) -> None:
    """No connection for a while: the consumer waits and goes on, and the job is sent once."""
    with psycopg.connect(own_database_url) as connection:
        name = connection.info.dbname
        job_id = Outbox().enqueue(connection, TOPIC, {}, effect_key="k")
    one = consumer(own_database_url, gateway)
    gateway.plan("k", replace(ACCEPT, during=lambda: _close(databases, name)))
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _true(gateway.calls and one._connections["settle"].broken_once))
    databases.admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS true'.encode())
    await aeventually(lambda: _true(not one._tasks))
    one.stop()
    assert await running == 0
    assert len(gateway.calls) == 1
    with psycopg.connect(own_database_url) as connection:
        assert Tables(connection).states() == {job_id: DONE}


async def _close(databases: Databases, name: str) -> None:
    """Let nobody in, and throw out who is there."""
    databases.admin.execute(f'ALTER DATABASE "{name}" WITH ALLOW_CONNECTIONS false'.encode())
    databases.admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name]
    )


async def _has(tables: Tables, job_id: int, state: tuple[str, str | None]) -> bool:
    return tables.states()[job_id] == state


async def _true(answer: object) -> object:
    return answer
