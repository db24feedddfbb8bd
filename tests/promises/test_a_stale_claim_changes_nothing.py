"""Promise 6: at most one valid claim per job; a stale one changes nothing, its holder is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from outbox.clock import boot_seconds
from outbox.errors import LeaseLost
from outbox.job import Attempt, EffectState, Job, Request
from outbox.ledger import Intent
from outbox.outcome import JobAction, Outcome
from outbox.settle import Settlement
from tests.promises.by_hand import ByHand, older
from tests.promises.scripted import ScriptedGateway, consumer
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

#: Every kind of outcome that a consumer may write after a call that it has begun once.
OUTCOMES = {
    "rejected": Outcome(
        JobAction.DEAD, "rejected", EffectState.REJECTED, requests_seen=1, nothing_open=True
    ),
    "retried": Outcome(
        JobAction.RETRY, "http_500", EffectState.OPEN, requests_seen=1, delay_seconds=1.0
    ),
    "retried, surely not sent": Outcome(
        JobAction.RETRY,
        "refused",
        EffectState.OPEN,
        requests_seen=1,
        nothing_open=True,
        refund=True,
    ),
    "held": Outcome(JobAction.HOLD, "no_memory", EffectState.HELD, requests_seen=1),
    "given back": Outcome(
        JobAction.GIVE_BACK, "lease_too_short", EffectState.OPEN, 1, nothing_open=True, refund=True
    ),
    "given back unbegun": Outcome(JobAction.GIVE_BACK, refund=True),
    "duplicate": Outcome(JobAction.DUPLICATE, "delivered"),
    "cancelled": Outcome(JobAction.CANCELLED, "expired"),
    "dead": Outcome(JobAction.DEAD, "unrenderable"),
    "done before": Outcome(JobAction.DONE, "delivered"),
}
DELIVERED = Outcome(
    JobAction.DONE,
    effect_state=EffectState.DELIVERED,
    requests_seen=1,
    nothing_open=True,
    message_id="id-1",
)

each_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())


@pytest.fixture
async def taken_over(enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand) -> Job:
    """A job as ``by_hand`` began it, before its lease ran out and ``other`` claimed it."""
    enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job)
    tables.expire_leases()
    assert await other.claim_crashed() is not None
    return job


@each_outcome
async def test_an_outcome_of_a_claim_that_was_taken_over_changes_nothing(
    taken_over: Job, tables: Tables, by_hand: ByHand, outcome: Outcome
) -> None:
    """Whatever the old holder believes to be the end of the job, no row changes and it is told."""
    before = tables.everything()
    settled = await by_hand.settle(taken_over, outcome)
    assert not settled.claim_held
    assert not settled.effect_written
    assert tables.everything() == before


@each_outcome
async def test_an_outcome_under_an_old_version_of_ones_own_claim_changes_nothing(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, outcome: Outcome
) -> None:
    """The same consumer claims again: what it still knows of its first claim is stale, too."""
    enqueue()
    first = await by_hand.claim_one()
    tables.expire_leases()
    second = await by_hand.claim_crashed()
    assert second is not None
    assert second.claim_version == first.claim_version + 1
    await by_hand.begun(second)
    before = tables.everything()
    assert not (await by_hand.settle(first, outcome)).claim_held
    assert tables.everything() == before


@each_outcome
async def test_an_outcome_under_another_consumers_name_changes_nothing(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand, outcome: Outcome
) -> None:
    """Job id and version are right, the holder isn't: not enough."""
    enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job)
    before = tables.everything()
    assert not (await other.settle(job, outcome)).claim_held
    assert tables.everything() == before


@each_outcome
async def test_an_outcome_of_a_job_that_is_gone_changes_nothing(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, outcome: Outcome
) -> None:
    """A second settling after the job was delivered finds nobody to harm."""
    enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job)
    assert (await by_hand.settle(job, DELIVERED)).claim_held
    before = tables.everything()
    assert not (await by_hand.settle(job, outcome)).claim_held
    assert tables.everything() == before


@each_outcome
async def test_a_stale_outcome_leaves_its_batch_mates_alone(
    taken_over: Job, enqueue: Enqueue, tables: Tables, by_hand: ByHand, outcome: Outcome
) -> None:
    """In one statement, the fresh claim's outcome is written and the stale one's is not."""
    fresh_id = enqueue("k-fresh")
    fresh = await by_hand.claim_one()
    await by_hand.begun(fresh)
    stale_before = tables.job(taken_over.id), tables.effect("k")
    settled = await by_hand.settler.settle(
        [Settlement(taken_over, outcome), Settlement(fresh, DELIVERED)]
    )
    assert [one.claim_held for one in settled] == [False, True]
    assert (tables.job(taken_over.id), tables.effect("k")) == stale_before
    assert tables.states()[fresh_id] == ("done", "delivered")


async def test_a_lease_that_ran_out_unnoticed_still_lets_its_outcome_in(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """Until somebody else claims the job, its holder knows best what became of it."""
    job_id = enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job)
    tables.expire_leases()
    assert (await by_hand.settle(job, DELIVERED)).claim_held
    assert tables.states()[job_id] == ("done", "delivered")


@pytest.mark.parametrize("state", ["open", "held"])
async def test_an_acceptance_in_hand_moves_an_open_or_held_effect_to_delivered(
    taken_over: Job, tables: Tables, by_hand: ByHand, other: ByHand, state: str
) -> None:
    """The one exception: who has the provider's word may write it, whoever holds the claim."""
    if state == "held":
        current = replace(taken_over, claim_version=taken_over.claim_version + 1)
        assert (await other.settle(current, OUTCOMES["held"])).effect_written
    job_before = tables.job(taken_over.id)
    settled = await by_hand.settle(taken_over, DELIVERED)
    assert not settled.claim_held
    assert settled.effect_written
    effect = tables.effect("k")
    assert (effect["state"], effect["provider_message_id"]) == ("delivered", "id-1")
    assert tables.job(taken_over.id) == job_before


@pytest.mark.parametrize("state", ["delivered", "rejected", "given_up"])
async def test_an_acceptance_in_hand_changes_no_settled_effect(
    taken_over: Job, tables: Tables, by_hand: ByHand, state: str
) -> None:
    """The exception goes no further: what is settled stays as it is."""
    tables.connection.execute(
        "UPDATE outbox.effect SET state = %s, settled_at = clock_timestamp(), request = NULL,"
        " provider_message_id = 'first'",
        [state],
    )
    before = tables.everything()
    assert not (await by_hand.settle(taken_over, DELIVERED)).effect_written
    assert tables.everything() == before


@each_outcome
async def test_a_request_that_was_begun_since_keeps_older_outcomes_out(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand, outcome: Outcome
) -> None:
    """Another job of the key has begun the next try: our failure says nothing about that one."""
    enqueue()
    ours = await by_hand.claim_one()
    await by_hand.begun(ours)
    enqueue()
    theirs = await other.claim_one()
    _expire(tables, ours)
    await other.begun(theirs)
    before = tables.effect("k")
    settled = await by_hand.settle(ours, outcome)
    assert settled.claim_held
    assert not settled.effect_written
    assert tables.effect("k") == before


@pytest.mark.parametrize(
    "stale",
    [
        pytest.param(older, id="old version"),
        pytest.param(
            lambda job: replace(job, claim_version=job.claim_version + 1), id="new version"
        ),
        pytest.param(lambda job: replace(job, id=job.id + 1_000), id="no such job"),
    ],
)
async def test_begin_writes_no_intent_for_a_claim_of_another_version(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, stale: Callable[[Job], Job]
) -> None:
    """The right consumer with the wrong version may not begin a try."""
    enqueue()
    job = await by_hand.claim_one()
    before = tables.everything()
    assert isinstance(await by_hand.begin(stale(job)), LeaseLost)
    assert tables.everything() == before


async def test_begin_writes_no_intent_under_another_consumers_name(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """A claim is worth something to its own holder alone."""
    enqueue()
    job = await by_hand.claim_one()
    before = tables.everything()
    assert isinstance(await other.begin(job), LeaseLost)
    assert tables.everything() == before


async def test_begin_writes_no_intent_once_the_lease_is_over(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """Even while nobody else has claimed the job: the next one may do so in this very moment."""
    enqueue()
    job = await by_hand.claim_one()
    tables.expire_leases()
    before = tables.everything()
    assert isinstance(await by_hand.begin(job), LeaseLost)
    assert tables.everything() == before


async def test_begin_tells_the_stale_from_the_fresh_in_one_batch(
    taken_over: Job, enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """One lost lease keeps none of the others from their calls."""
    enqueue("k-fresh")
    fresh = await by_hand.claim_one()
    before = tables.effect("k")
    stale_begin, fresh_begin = await by_hand.begin_all(taken_over, fresh)
    assert not isinstance(stale_begin, Attempt)
    assert isinstance(fresh_begin, Attempt)
    assert tables.effect("k") == before


@pytest.mark.parametrize("stale", ["old version", "another consumer", "lease is over"])
async def test_a_further_try_is_begun_by_the_holder_of_the_claim_alone(
    taken_over: Job, tables: Tables, by_hand: ByHand, other: ByHand, stale: str
) -> None:
    """The ledger's row is there already, and has been read: to reopen it is fenced once more."""
    current = replace(taken_over, claim_version=taken_over.claim_version + 1)
    who, job = other, current
    if stale == "old version":
        await other.begun(current)
        who, job = by_hand, taken_over
    elif stale == "another consumer":
        who = by_hand
    else:
        tables.expire_leases()
    before = tables.everything()
    (begun,) = await who.ledger.begin([_asking_only_for_a_further_try(job)])
    assert isinstance(begun, LeaseLost)
    assert tables.everything() == before


async def test_a_further_try_is_begun_by_the_holder_of_the_claim(
    taken_over: Job, other: ByHand
) -> None:
    """The same words from the right one: begun."""
    current = replace(taken_over, claim_version=taken_over.claim_version + 1)
    (begun,) = await other.ledger.begin([_asking_only_for_a_further_try(current)])
    assert isinstance(begun, Attempt)
    assert begun.requests_sent == 2


async def test_two_who_read_the_same_effect_begin_one_further_try(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """Two jobs of one key, two consumers, one open effect: the ledger's own token decides."""
    for key in ("k", "k"):
        enqueue(key)
    (job, their_job) = await by_hand.claim(1), await other.claim(1)
    await by_hand.begun(job[0])
    assert (
        await by_hand.settle(job[0], replace(OUTCOMES["retried"], delay_seconds=0.0))
    ).claim_held
    (job,) = (await by_hand.claim(1),)
    begun = await asyncio.gather(by_hand.begin(job[0]), other.begin(their_job[0]))
    assert sum(isinstance(one, Attempt) for one in begun) == 1
    assert tables.effect("k")["requests_sent"] == 2


async def test_a_heartbeat_extends_no_claim_that_was_taken_over(
    taken_over: Job, tables: Tables, by_hand: ByHand
) -> None:
    """The late heartbeat changes nothing, and says which job is lost."""
    before = tables.everything()
    assert await by_hand.leases.extend() == [taken_over.id]
    assert tables.everything() == before
    assert not by_hand.leases.allows(taken_over, 0)


async def test_an_old_version_of_ones_own_claim_begins_and_extends_nothing(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """The same consumer has claimed the job again: its first claim is as stale as a stranger's."""
    enqueue()
    first = await by_hand.claim_one()
    await by_hand.begun(first)
    tables.expire_leases()
    second = await by_hand.claim_crashed()
    assert second is not None
    await by_hand.begun(second)
    by_hand.leases.add([first], since=boot_seconds())
    before = tables.everything()
    (begun,) = await by_hand.ledger.begin([_asking_only_for_a_further_try(first)])
    assert isinstance(begun, LeaseLost)
    assert await by_hand.leases.extend() == [first.id]
    assert tables.everything() == before


async def test_a_heartbeat_extends_nobody_elses_claim(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """Job id and version are right, the holder isn't: the same as no claim at all."""
    enqueue()
    job = await by_hand.claim_one()
    other.leases.add([job], since=boot_seconds())
    before = tables.everything()
    assert await other.leases.extend() == [job.id]
    assert tables.everything() == before


async def test_a_heartbeat_revives_no_lease_that_has_run_out(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """Once over, a lease is over, whether or not anybody has noticed."""
    enqueue()
    job = await by_hand.claim_one()
    tables.expire_leases()
    before = tables.everything()
    assert await by_hand.leases.extend() == [job.id]
    assert tables.everything() == before


async def test_a_heartbeat_extends_what_holds_beside_what_is_lost(
    taken_over: Job, enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """One lost lease takes none of the others with it."""
    fresh_id = enqueue("k-fresh")
    await by_hand.claim_one()
    lease_before = _lease(tables, fresh_id)
    assert await by_hand.leases.extend() == [taken_over.id]
    assert _lease(tables, fresh_id) > lease_before


@pytest.mark.parametrize("statement", ["settle", "begin", "reopen", "extend"])
async def test_a_claim_lost_while_its_statement_waits_for_the_row_is_noticed(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, statement: str
) -> None:
    """The claim is taken over between the statement's snapshot and its lock: it must look again."""
    job_id = enqueue()
    job = await by_hand.claim_one()
    if statement in {"settle", "reopen"}:
        await by_hand.begun(job)
    if statement == "reopen":
        await by_hand.settle(job, replace(OUTCOMES["retried"], delay_seconds=0.0))
        (job,) = await aeventually(lambda: _claimed_again(by_hand))
    before = tables.effects()
    with psycopg.connect(database_url) as thief:
        thief.execute(
            "UPDATE outbox.job SET claim_version = claim_version + 1, claimed_by = 'thief',"
            " lease_until = clock_timestamp() + interval '1 minute'"
        )
        waiting = asyncio.create_task(_run(by_hand, job, statement))
        await aeventually(lambda: _waits_for_a_lock(tables, by_hand.claimed_by))
        thief.commit()
    assert await waiting == "lost"
    row = tables.job(job_id)
    assert row is not None
    assert (row["claimed_by"], row["claim_version"]) == ("thief", job.claim_version + 1)
    assert tables.effects() == before


@pytest.mark.parametrize("state", ["delivered", "held", "rejected", "given_up"])
async def test_an_effect_that_is_settled_between_read_and_reopen_is_not_called_again(
    taken_over: Job, tables: Tables, other: ByHand, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A late acceptance, say: it begins no try, so the ledger's token alone would not show it."""
    fetch = other.connection.fetch

    async def then_it_is_settled(kind: type[Any], statement: str, /, **given: object) -> list[Any]:
        rows = await fetch(kind, statement, **given)
        if statement == "read_effects":
            tables.connection.execute(
                "UPDATE outbox.effect"
                " SET state = %s, request = NULL, settled_at = clock_timestamp()",
                [state],
            )
        return rows

    monkeypatch.setattr(other.connection, "fetch", then_it_is_settled)
    current = replace(taken_over, claim_version=taken_over.claim_version + 1)
    assert not isinstance(await other.begin(current), Attempt)
    effect = tables.effect("k")
    assert (effect["state"], effect["requests_sent"]) == (state, 1)


async def test_a_try_begun_while_the_settling_waits_for_the_ledger_is_noticed(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """The claim holds, but the ledger's row moves on between the snapshot and the lock."""
    job_id = enqueue()
    job = await by_hand.claim_one()
    await by_hand.begun(job)
    with psycopg.connect(database_url) as another:
        another.execute("UPDATE outbox.effect SET requests_sent = requests_sent + 1")
        settling = asyncio.create_task(by_hand.settle(job, OUTCOMES["rejected"]))
        await aeventually(lambda: _waits_for_a_lock(tables, by_hand.claimed_by))
        another.commit()
    settled = await settling
    assert (settled.claim_held, settled.effect_written) == (True, False)
    assert tables.effect("k")["state"] == "open"
    # Nothing is decided about the job, but to look again; and nothing is charged.
    row = tables.job(job_id)
    assert row is not None
    assert (row["waiting"], row["lease_until"], row["attempts"]) == (None, None, 0)


async def test_recovery_leaves_a_job_alone_that_was_settled_while_it_waited(
    database_url: str, enqueue: Enqueue, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """An expired row's owner settles in the moment of its recovery: it stays settled (case-01)."""
    enqueue("k-settled")
    enqueue("k-crashed")
    settled, _ = sorted(await by_hand.claim(), key=lambda job: job.id)
    await by_hand.begun(settled)
    tables.expire_leases()
    await by_hand.settle(settled, DELIVERED)
    recovered = await other.claim_crashed()
    assert recovered is not None
    assert recovered.effect_key == "k-crashed"
    assert await other.claim_crashed() is None
    assert tables.effect("k-settled")["state"] == "delivered"


async def test_many_consumers_at_once_never_claim_the_same_job(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """Eight consumers grab in small bites; every job is claimed once, at version 1."""
    ids = {enqueue(f"k-{n}") for n in range(60)}
    consumers = [ByHand(database_url, name=f"c{n}") for n in range(8)]
    claims = await asyncio.gather(*(_claim_all(one) for one in consumers))
    for one in consumers:
        await one.connection.close()
    claimed = [job.id for jobs in claims for job in jobs]
    assert sorted(claimed) == sorted(ids)
    assert {job.claim_version for jobs in claims for job in jobs} == {1}


async def test_the_claim_version_never_goes_back(
    enqueue: Enqueue, tables: Tables, by_hand: ByHand
) -> None:
    """Given back, retried, crashed: each claim has a higher version than all before."""
    enqueue()
    versions = []
    for outcome in (
        OUTCOMES["given back unbegun"],
        replace(OUTCOMES["dead"], job_action=JobAction.RETRY),
    ):
        job = await by_hand.claim_one()
        versions.append(job.claim_version)
        await by_hand.settle(job, outcome)
    job = await by_hand.claim_one()
    versions.append(job.claim_version)
    tables.expire_leases()
    crashed = await by_hand.claim_crashed()
    assert crashed is not None
    assert [*versions, crashed.claim_version] == [1, 2, 3, 4]


def test_two_consumers_of_one_name_are_two(database_url: str) -> None:
    """The same host, process id and name after a restart: still another holder (case-11)."""
    names = {consumer(database_url, ScriptedGateway()).claimed_by for _ in range(20)}
    assert len(names) == 20


async def test_a_lease_is_counted_from_the_claim_not_from_its_transactions_start(
    database_url: str, enqueue: Enqueue, tables: Tables
) -> None:
    """A claim that waited for its lock is not born half expired (case-10)."""
    enqueue()
    async with ByHand(database_url, lease_seconds=1.0) as one:
        await one.claims.scan()
        with psycopg.connect(database_url) as blocker:
            blocker.execute("LOCK TABLE outbox.job IN ACCESS EXCLUSIVE MODE")
            claiming = asyncio.create_task(one.claims.take(1))
            await aeventually(lambda: _waits_for_a_lock(tables, one.claimed_by))
            blocker.execute("SELECT pg_sleep(0.8)")
            blocker.rollback()
        (job,) = await claiming
        (row,) = tables.rows(
            "SELECT extract(epoch FROM lease_until - claimed_at) AS seconds FROM outbox.job"
        )
        assert row["seconds"] >= 0.95
        # The holder counts from before the round trip: earlier than the database, never later.
        assert not one.leases.allows(job, 0.5)


def _asking_only_for_a_further_try(job: Job) -> Intent:
    """An intent that leaves out the first statement, which would find the lost claim before."""
    return Intent(job, Request(job.effect_key, b"body"), may_insert=False)


async def _claim_all(one: ByHand) -> list[Job]:
    claimed: list[Job] = []
    while jobs := await one.claim(5):
        claimed += jobs
    return claimed


async def _run(one: ByHand, job: Job, statement: str) -> str:
    runs: dict[str, Callable[[], Awaitable[bool]]] = {
        "settle": lambda: _lost_in_settling(one, job),
        "begin": lambda: _lost_in_beginning(one, job),
        "reopen": lambda: _lost_in_reopening(one, job),
        "extend": lambda: _lost_in_extending(one, job),
    }
    return "lost" if await runs[statement]() else "held"


async def _lost_in_settling(one: ByHand, job: Job) -> bool:
    return not (await one.settle(job, OUTCOMES["rejected"])).claim_held


async def _lost_in_beginning(one: ByHand, job: Job) -> bool:
    return isinstance(await one.begin(job), LeaseLost)


async def _lost_in_reopening(one: ByHand, job: Job) -> bool:
    (begun,) = await one.ledger.begin([_asking_only_for_a_further_try(job)])
    return isinstance(begun, LeaseLost)


async def _claimed_again(one: ByHand) -> list[Job]:
    await one.claims.scan()
    return list(await one.claims.take(1))


async def _lost_in_extending(one: ByHand, job: Job) -> bool:
    return job.id in await one.leases.extend()


async def _waits_for_a_lock(tables: Tables, claimed_by: str) -> bool:
    rows = tables.rows(
        "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'",
        f"test {claimed_by}",
    )
    return bool(rows)


def _expire(tables: Tables, job: Job) -> None:
    tables.connection.execute(
        "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 second' WHERE id = %s",
        [job.id],
    )


def _lease(tables: Tables, job_id: int) -> float:
    row = tables.job(job_id)
    assert row is not None
    return float(row["lease_until"].timestamp())
