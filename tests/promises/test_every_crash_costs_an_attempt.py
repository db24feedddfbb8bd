"""Promise 8: recovered within lease and one full scan, and every crash costs an attempt.

A job that kills its worker ends after max attempts: dead if nothing was sent, else held. Those in
flight with it are charged once at most. A clean shutdown charges nothing.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from outbox.job import Attempt, Job
from outbox.ledger import Intent
from outbox.outcome import Outcome
from tests.promises.by_hand import POLICY, ByHand, deliver
from tests.promises.scripted import (
    ACCEPT,
    ANSWER_LOST,
    FAILS,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

DONE = ("done", "delivered")


async def test_a_crashed_job_is_claimed_again_within_lease_and_one_full_scan(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Its holder is gone without a word; a consumer that is there all the time picks it up."""
    lease_seconds, poll_seconds = 1.0, 0.05
    enqueue()
    async with ByHand(database_url, lease_seconds=lease_seconds) as crashes:
        await crashes.claim_one()
        claimed = time.monotonic()
        one = consumer(database_url, gateway, poll_seconds=poll_seconds)
        running = asyncio.create_task(one.run())
        await aeventually(lambda: _true(gateway.calls))
        took = time.monotonic() - claimed
        one.stop()
        await running
    # A full scan comes with every poll, which has some jitter; 1 s for a slow machine.
    assert lease_seconds - 0.05 <= took <= lease_seconds + 2 * poll_seconds + 1.0
    assert len(gateway.calls) == 1


async def test_a_consumer_of_the_same_host_and_name_recovers_it_just_as_late(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """A restart is not the process that crashed: it waits for the lease's end (case-11)."""
    enqueue()
    async with (
        ByHand(database_url, name="w1") as crashes,
        ByHand(database_url, name="w1") as restart,
    ):
        await crashes.claim_one()
        assert await restart.claim() == []
        assert await restart.claim_crashed() is None
        tables.expire_leases()
        assert await restart.claim_crashed() is not None


async def test_recovery_needs_no_register_of_consumers(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """The lease alone decides, not a row of a worker table, gone or not yet there (case-12)."""
    enqueue()
    await by_hand.claim_one()
    tables.connection.execute("DELETE FROM outbox.consumer")
    assert await other.claim_crashed() is None
    tables.expire_leases()
    assert await other.claim_crashed() is not None


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_job_that_kills_its_worker_ends_after_max_attempts(
    database_url: str, enqueue: Enqueue, tables: Tables, max_attempts: int, begun: bool
) -> None:
    """Crash after crash: dead if nothing was ever begun, held if something may have been sent."""
    policy = replace(POLICY, max_attempts=max_attempts)
    job_id = enqueue()
    crashes = 0
    async with ByHand(database_url, policy=policy) as one:
        while (job := await _next(one)) is not None:
            over = job.attempts > policy.attempts_allowed(job)
            verdict = (
                await one.ledger.begin([Intent(job, None, may_insert=False)]) if over else None
            )
            if verdict is not None:
                assert isinstance(verdict[0], Outcome)
                await one.settle(job, verdict[0])
                break
            crashes += 1
            if begun:
                assert isinstance(await one.begin(job), Attempt)
            tables.expire_leases()
    assert crashes == max_attempts
    assert tables.states() == {job_id: ("held" if begun else "dead", "max_attempts")}


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
@pytest.mark.parametrize("step", [FAILS, ANSWER_LOST], ids=["error", "timeout"])
async def test_as_many_calls_are_made_as_attempts_are_allowed(
    database_url: str, enqueue: Enqueue, tables: Tables, max_attempts: int, step: Step
) -> None:
    """While other jobs get real answers, failures are the job's own: exactly so many (case-35)."""
    gateway = ScriptedGateway(max_attempts=max_attempts)
    job_id = enqueue("k-bad")

    async def meanwhile_others_are_answered() -> None:
        enqueue(f"k-good-{len(gateway.calls)}")
        before = sum(gateway.accepted.values())
        await aeventually(lambda: _true(sum(gateway.accepted.values()) > before))

    bad = replace(step, accepts=False, during=meanwhile_others_are_answered)
    gateway.plan("k-bad", *[bad] * 10)
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls_of("k-bad")) == max_attempts
    assert tables.states()[job_id] == ("held", "max_attempts")


async def test_one_call_at_a_time_a_bad_job_ends_one_call_after_its_cap(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """Nobody can answer while its failure waits, so its next failure is the witness."""
    gateway = ScriptedGateway(max_attempts=3)
    job_id = enqueue("k-bad")
    gateway.plan("k-bad", *[FAILS] * 50)
    for number in range(150):
        enqueue(f"k-{number}")
    assert await drain(database_url, gateway, concurrency=1) == 0
    assert len(gateway.calls_of("k-bad")) == 4
    assert tables.states()[job_id] == ("held", "max_attempts")


async def test_a_jobs_own_cap_goes_before_the_default(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """max_attempts=1 at the enqueue, five by default: one crash is enough."""
    gateway = ScriptedGateway(max_attempts=5)
    job_id = enqueue(max_attempts=1)
    await by_hand.claim_one()
    tables.expire_leases()
    assert await drain(database_url, gateway) == 0
    assert gateway.calls == []
    assert tables.states() == {job_id: ("dead", "max_attempts")}


async def test_those_in_flight_with_a_killer_are_charged_once_at_most(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """One of ten kills the process whenever it is tried: it ends alone, the nine go out."""
    policy = replace(POLICY, max_attempts=3)
    ids = [enqueue(f"k-{n}") for n in range(10)]
    killer = ids[4]
    charged: dict[int, int] = {}
    while True:
        async with ByHand(database_url, policy=policy) as process:
            jobs = await process.claim(10)
            if not jobs and (crashed := await process.claim_crashed()) is not None:
                jobs = [crashed]
            if not jobs:
                break
            if not await _live(process, jobs, killer, policy.max_attempts, charged):
                tables.expire_leases()
    # The nine: once for the crash that they shared, once for the claim that delivered them.
    assert charged == {id_: 3 if id_ == killer else 2 for id_ in ids}
    states = tables.states()
    assert states.pop(killer) == ("dead", "max_attempts")
    assert set(states.values()) == {DONE}


async def test_a_crashed_job_is_tried_alone(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, gateway: ScriptedGateway
) -> None:
    """While the one that may kill again is in flight, nothing else is."""
    for n in range(3):
        enqueue(f"k-crashed-{n}")
    await by_hand.claim()
    tables.expire_leases()
    for n in range(10):
        enqueue(f"k-new-{n}")
    gateway.otherwise = replace(ACCEPT, during=lambda: asyncio.sleep(0.01))
    assert await drain(database_url, gateway) == 0
    together = {call.wire_key: call.in_flight for call in gateway.calls}
    assert {together[f"k-crashed-{n}"] for n in range(3)} == {1}
    assert max(together.values()) > 1
    assert len(gateway.calls) == 13


async def test_a_clean_shutdown_charges_nothing_and_finishes_what_has_begun(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """SIGTERM with calls in flight and a queue behind them: they settle, it is untouched."""
    ids = [enqueue(f"k-{n}") for n in range(20)]
    gateway.otherwise = replace(ACCEPT, during=lambda: asyncio.sleep(0.3))
    one = consumer(database_url, gateway, concurrency=3)
    running = asyncio.create_task(one.run())
    await aeventually(lambda: _true(len(gateway.calls) == 3))
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == 0
    sent = {f"k-{n}" for n in range(20)} & gateway.accepted.keys()
    assert len(sent) == len(gateway.calls)
    left = tables.rows("SELECT attempts, lease_until, claimed_by FROM outbox.job")
    assert len(left) == 20 - len(sent)
    assert all(row == {"attempts": 0, "lease_until": None, "claimed_by": None} for row in left)
    assert len(tables.states()) == len(ids)


async def test_a_job_that_was_claimed_but_not_begun_at_the_shutdown_is_given_back_unspent(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Stopped between claim and start: the next consumer finds it as it was, at its old place."""
    job_id = enqueue()
    before = tables.job(job_id)
    one = consumer(database_url, gateway)
    take = one._intake._claims.take

    async def stop_after(limit: int, *, new_work_only: bool = False) -> object:
        jobs = await take(limit, new_work_only=new_work_only)
        one.stop()
        return jobs

    one._intake._claims.take = stop_after  # type: ignore[method-assign, assignment]
    assert await one.run() == 0
    after = tables.job(job_id)
    assert after is not None
    assert before is not None
    assert after | {"claim_version": 0} == before
    assert gateway.calls == []


async def test_attempts_beyond_any_power_of_two_are_only_a_long_wait(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, gateway: ScriptedGateway
) -> None:
    """1100 failures overflow no arithmetic (case-61)."""
    job_id = enqueue(max_attempts=2_000)
    await by_hand.begun(await by_hand.claim_one())
    tables.connection.execute("UPDATE outbox.job SET attempts = 1100")
    tables.connection.execute("UPDATE outbox.effect SET requests_sent = 1100")
    tables.expire_leases()
    gateway.plan("k", FAILS)
    assert await drain(database_url, gateway) == 0
    assert tables.states() == {job_id: DONE}


async def _next(one: ByHand) -> Job | None:
    jobs = await one.claim(1)
    return jobs[0] if jobs else await one.claim_crashed()


async def _live(
    process: ByHand, jobs: list[Job], killer: int, max_attempts: int, charged: dict[int, int]
) -> bool:
    """One process's life with these jobs; says whether it survived them."""
    for job in jobs:
        charged[job.id] = min(job.attempts, max_attempts)
    if any(job.id == killer and job.attempts <= max_attempts for job in jobs):
        return False
    for job in jobs:
        if job.id == killer:
            (verdict,) = await process.ledger.begin([Intent(job, None, may_insert=False)])
            assert isinstance(verdict, Outcome)
            await process.settle(job, verdict)
        else:
            await deliver(process, job)
    return True


async def _true(answer: object) -> object:
    return answer
