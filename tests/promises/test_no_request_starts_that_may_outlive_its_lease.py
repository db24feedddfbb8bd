"""Promise 7: no request starts unless, by the last check, it must end before the lease does."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from outbox import Outbox
from outbox.clock import boot_seconds
from outbox.job import Job, Request
from tests.promises.by_hand import ByHand
from tests.promises.scripted import TOPIC, ScriptedGateway, Step, consumer, drain
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

DONE = ("done", "delivered")


class BlocksItsLoop(ScriptedGateway):
    """Stops the whole process for a while, once: what SIGSTOP, a slow DNS or a bad template do."""

    def __init__(self, *, where: str, seconds: float) -> None:
        super().__init__(deadline_seconds=0.2)
        self.where = where
        self.seconds = seconds

    def block(self, where: str) -> None:
        """Block here, if it is the place."""
        if where == self.where:
            self.where = ""
            time.sleep(self.seconds)

    async def render(self, job: Job) -> Request:
        self.block("render")
        return await super().render(job)


@pytest.mark.parametrize("where", ["render", "before the last check"])
async def test_a_consumer_that_was_stopped_past_its_lease_makes_no_call(
    database_url: str, enqueue: Enqueue, tables: Tables, where: str
) -> None:
    """It wakes up with a claim that is over, and finds out before its next call (case-06)."""
    gateway = BlocksItsLoop(where=where, seconds=1.3)

    async def before_the_last_check() -> None:
        gateway.block("before the last check")

    gateway.plan("k", Step(accepts=True, before=before_the_last_check))
    job_id = enqueue()
    assert await drain(database_url, gateway, lease_seconds=0.9, heartbeat_seconds=0.2) == 0
    assert len(gateway.calls) == 1
    assert tables.states() == {job_id: DONE}
    # The claim after the stop made the call, not the one before it.
    assert tables.effect("k")["claim_version"] == 2
    assert gateway.not_started == (["k"] if where == "before the last check" else [])


async def test_a_consumer_whose_job_was_taken_meanwhile_leaves_it_alone(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway, other: ByHand
) -> None:
    """Between begin and call another consumer has claimed the job: the first one stands down."""

    async def taken_over() -> None:
        tables.expire_leases()
        await aeventually(other.claim_crashed)
        await aeventually(lambda: _true(one._leases._ends[job_id] == 0))

    gateway.plan("k", Step(accepts=True, before=taken_over))
    job_id = enqueue()
    one = consumer(database_url, gateway, heartbeat_seconds=0.05)
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _true(not one._leases._ends and other.leases._ends))
    one.stop()
    assert await running == 0
    assert gateway.calls == []
    (row,) = tables.rows("SELECT claimed_by, claim_version FROM outbox.job")
    assert row == {"claimed_by": other.claimed_by, "claim_version": 2}


async def test_no_call_starts_once_heartbeats_can_no_longer_be_written(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """The database takes no more heartbeats: the lease runs out here, too, without a signal."""
    locked = asyncio.Event()
    blocker = await psycopg.AsyncConnection.connect(database_url)

    async def until_the_lease_is_nearly_over() -> None:
        await blocker.execute("LOCK TABLE outbox.job IN ACCESS EXCLUSIVE MODE")
        locked.set()
        await asyncio.sleep(0.8)

    gateway.plan("k", Step(accepts=True, before=until_the_lease_is_nearly_over))
    enqueue()
    one = consumer(database_url, gateway, lease_seconds=1.2, heartbeat_seconds=0.2)
    running = asyncio.create_task(one.run(drain=True, timeout_seconds=20))
    await locked.wait()
    await aeventually(lambda: _true(gateway.not_started))
    assert gateway.calls == []
    await blocker.rollback()
    await blocker.close()
    assert await running == 0
    assert gateway.not_started == ["k"]
    assert gateway.accepted["k"] == 1


async def test_no_call_starts_that_could_take_longer_than_what_is_left_of_the_lease(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """Deadline above lease, as no settings allow: not one call, and nothing spent or held."""
    gateway = ScriptedGateway(deadline_seconds=5.0)
    job_id = enqueue()
    assert await drain(database_url, gateway, lease_seconds=2.0, timeout=0.5) == 1
    assert gateway.calls == []
    row = tables.job(job_id)
    assert row is not None
    assert (row["attempts"], row["waiting"], row["lease_until"]) == (0, None, None)
    effect = tables.effect("k")
    assert (effect["state"], effect["open_since"]) == ("open", None)


async def test_a_long_call_keeps_its_lease_by_heartbeats(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """A call of two leases' length: one call, one claim (case-05)."""
    gateway = ScriptedGateway(deadline_seconds=0.1)
    gateway.plan("k", Step(accepts=True, during=lambda: asyncio.sleep(2.4)))
    job_id = enqueue()
    rival = ScriptedGateway()
    settings: dict[str, Any] = {"lease_seconds": 1.2, "heartbeat_seconds": 0.2}
    first = consumer(database_url, gateway, **settings)
    second = consumer(database_url, rival, **settings)
    working = asyncio.create_task(first.run(drain=True, timeout_seconds=20))
    await aeventually(lambda: _true(gateway.calls))
    assert await second.run(drain=True, timeout_seconds=20) == 0
    assert await working == 0
    assert rival.calls == []
    assert len(gateway.calls) == 1
    assert tables.effect("k")["claim_version"] == 1
    assert tables.states() == {job_id: DONE}


async def test_heartbeats_do_not_wait_for_claims_and_settlings(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """Their connection is their own: a settling behind a lock lets no lease die (case-08)."""
    gateway = ScriptedGateway(deadline_seconds=0.1)
    first_id, second_id = enqueue("k-slow-to-settle"), enqueue("k-slow-call")
    blocker = await psycopg.AsyncConnection.connect(database_url)

    async def lock_the_ledger_row() -> None:
        await blocker.execute(
            "SELECT FROM outbox.effect WHERE effect_key = 'k-slow-to-settle' FOR UPDATE"
        )

    gateway.plan("k-slow-to-settle", Step(accepts=True, during=lock_the_ledger_row))
    gateway.plan("k-slow-call", Step(accepts=True, during=lambda: asyncio.sleep(2.4)))
    one = consumer(database_url, gateway, lease_seconds=1.2, heartbeat_seconds=0.2)
    running = asyncio.create_task(one.run(drain=True, timeout_seconds=20))
    await aeventually(lambda: _true(len(gateway.calls) == 2))
    await asyncio.sleep(1.8)
    await blocker.rollback()
    await blocker.close()
    assert await running == 0
    assert len(gateway.calls) == 2
    assert tables.states() == {first_id: DONE, second_id: DONE}
    assert {effect["claim_version"] for effect in tables.effects().values()} == {1}


async def test_heartbeats_go_on_without_the_table_of_hints(own_database_url: str) -> None:
    """Nothing that only hints hang on may keep a lease from being extended."""
    gateway = ScriptedGateway(deadline_seconds=0.3)
    with psycopg.connect(own_database_url) as connection:
        Outbox().enqueue(connection, TOPIC, {}, effect_key="k")
        connection.execute("ALTER TABLE outbox.consumer ADD CONSTRAINT no_more CHECK (false)")
    gateway.plan("k", Step(accepts=True, before=lambda: asyncio.sleep(1.5)))
    one = consumer(own_database_url, gateway, lease_seconds=1.8, heartbeat_seconds=0.2)
    # It complains in the end, for the hints are its own; but not before the job is done.
    with pytest.raises(psycopg.errors.CheckViolation):
        await one.run()
    assert gateway.not_started == []
    assert gateway.accepted["k"] == 1
    with psycopg.connect(own_database_url) as connection:
        row = connection.execute("SELECT state, claim_version FROM outbox.effect").fetchone()
    assert row == ("delivered", 1)


async def test_the_holder_never_believes_longer_in_a_lease_than_the_database(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """Counted from before the round trip, after a claim and after a heartbeat."""
    enqueue()
    job = await by_hand.claim_one()
    for _ in range(2):
        believed = by_hand.leases._ends[job.id] - boot_seconds()
        (row,) = tables.rows(
            "SELECT extract(epoch FROM lease_until - clock_timestamp()) AS left FROM outbox.job"
        )
        # The database was asked a little later, so what it has left is a little less than it was.
        assert believed <= float(row["left"]) + 0.05
        await by_hand.leases.extend()


async def test_a_jump_of_the_wall_clock_changes_nothing(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    gateway: ScriptedGateway,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hours ahead, hours behind: leases and schedules know the database's clock alone (case-09)."""
    real = time.time
    for offset_seconds in (-36_000, 36_000):
        monkeypatch.setattr(time, "time", lambda offset=offset_seconds: real() + offset)
        job_id = enqueue(f"k{offset_seconds}")
        assert await drain(database_url, gateway) == 0
        assert tables.states()[job_id] == DONE
    assert len(gateway.calls) == 2


async def _true(answer: object) -> object:
    return answer
