"""Promise 12: settled is final: no cancel, retry, replay, late heartbeat or recovery undoes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox.cancel import cancel
from outbox.job import Attempt, Job
from outbox.operator import Operator
from outbox.outcome import JobAction, Outcome
from outbox.resolve import Resolution, resolve
from outbox.retry import Permission, retry
from tests.promises.by_hand import ByHand, deliver, delivered
from tests.promises.scripted import (
    ACCEPT,
    ANSWER_LOST,
    REFUSES,
    ScriptedGateway,
    Step,
    consumer,
    drain,
)
from tests.promises.test_a_stale_claim_changes_nothing import OUTCOMES

if TYPE_CHECKING:
    from tests.promises.conftest import Enqueue, Tables

DONE = ("done", "delivered")
ANYTHING = Permission(send_again=True, ignore_expiry=True)


@pytest.fixture
def operator(database_url: str) -> Iterator[Operator]:
    """A person at the command line."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Operator(connection)


@pytest.fixture
async def settled(enqueue: Enqueue, by_hand: ByHand) -> Job:
    """A delivered job, as its former holder remembers it."""
    enqueue()
    job = await by_hand.claim_one()
    assert (await deliver(by_hand, job)).claim_held
    return job


@pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
async def test_no_late_outcome_undoes_a_delivery(
    settled: Job, tables: Tables, by_hand: ByHand, outcome: Outcome
) -> None:
    """Not under the very claim that delivered it."""
    before = tables.everything()
    assert not (await by_hand.settle(settled, outcome)).claim_held
    assert tables.everything() == before


async def test_no_second_acceptance_replaces_the_first(
    settled: Job, tables: Tables, by_hand: ByHand
) -> None:
    """The provider's first id stays."""
    before = tables.everything()
    late = Attempt("k", b"", 1, sole_open=True, call_before=0.0)
    assert not (await by_hand.settle(settled, delivered(late))).effect_written
    assert tables.everything() == before


async def test_no_late_begin_heartbeat_or_recovery_undoes_a_delivery(
    settled: Job, tables: Tables, by_hand: ByHand, other: ByHand
) -> None:
    """Whatever a consumer does that has not noticed."""
    before = tables.everything()
    assert not isinstance(await by_hand.begin(settled), Attempt)
    assert await by_hand.leases.extend() == [settled.id]
    assert await other.claim() == []
    assert await other.claim_crashed() is None
    assert tables.everything() == before


@pytest.mark.parametrize("resolution", list(Resolution))
async def test_no_person_undoes_a_delivery(
    settled: Job, tables: Tables, operator: Operator, resolution: Resolution
) -> None:
    """Cancel, retry and resolve say that it is too late, and change nothing."""
    before = tables.everything()
    assert [one.refusal for one in cancel(operator, [settled.id])] == ["delivered"]
    assert [one.refusal for one in retry(operator, [settled.id], ANYTHING)] != [None]
    (resolved,) = resolve(operator, ["k"], resolution, message_id="forged")
    assert (resolved.done, resolved.state) == (False, "delivered")
    assert tables.everything() == before


async def test_a_duplicate_is_not_brought_back(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    operator: Operator,
    gateway: ScriptedGateway,
) -> None:
    """Its effect was had: a retry would have nothing to do, and does nothing."""
    enqueue()
    duplicate = enqueue()
    assert await drain(database_url, gateway) == 0
    before = tables.everything()
    assert [one.refusal for one in retry(operator, [duplicate], ANYTHING)] == ["duplicate"]
    assert tables.everything() == before


POINTS = ["before the claim", "before the call", "during the call", "before it is settled", "after"]


@pytest.mark.parametrize("point", POINTS)
async def test_cancelled_is_said_only_of_what_was_never_sent(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    operator: Operator,
    gateway: ScriptedGateway,
    point: str,
) -> None:
    """At five points of its way, a job is either cancelled or sent, and never both (case-31)."""
    said: list[str | None] = []

    async def call_off() -> None:
        said.extend(one.refusal for one in await asyncio.to_thread(cancel, operator, [job_id]))

    job_id = enqueue()
    steps: dict[str, Step] = {
        "before the call": Step(accepts=True, before=call_off),
        "during the call": Step(accepts=True, during=call_off),
    }
    gateway.plan("k", steps.get(point, ACCEPT))
    if point == "before the claim":
        await call_off()
    one = consumer(database_url, gateway)
    if point == "before it is settled":
        _before(one._settles._run, lambda wrapped: setattr(one._settles, "_run", wrapped), call_off)
    assert await one.run(drain=True, timeout_seconds=20) == 0
    if point == "after":
        await call_off()
    cancelled = said == [None]
    assert cancelled == (point == "before the claim")
    assert gateway.accepted["k"] == (0 if cancelled else 1)
    assert tables.states() == {job_id: ("cancelled", "by_person") if cancelled else DONE}


async def test_a_job_whose_claim_crashed_is_cancelled_only_if_nothing_can_have_left(
    enqueue: Enqueue, tables: Tables, operator: Operator, by_hand: ByHand
) -> None:
    """Its holder is gone: before its intent it may be called off, after it no more."""
    unbegun, begun = enqueue("k-unbegun"), enqueue("k-begun")
    jobs = {job.id: job for job in await by_hand.claim()}
    await by_hand.begun(jobs[begun])
    tables.expire_leases()
    answers = {one.job_id: one.refusal for one in cancel(operator, [unbegun, begun])}
    assert answers == {unbegun: None, begun: "may_have_been_sent"}
    # The holder of the cancelled job was only stopped, and wakes up.
    assert not isinstance(await by_hand.begin(jobs[unbegun]), Attempt)
    assert "k-unbegun" not in tables.effects()


async def test_two_replays_of_all_dead_jobs_bring_each_back_once(
    database_url: str, enqueue: Enqueue, tables: Tables, gateway: ScriptedGateway
) -> None:
    """Two operators press the button at once, and once more: one life for each job (case-32)."""
    ids = [enqueue(f"k-{n}", max_attempts=1) for n in range(40)]
    gateway.unrenderable = {f"k-{n}" for n in range(40)}
    assert await drain(database_url, gateway) == 0
    assert {state for state, _ in tables.states().values()} == {"dead"}
    gateway.unrenderable.clear()

    def replay_all() -> list[str | None]:
        with psycopg.connect(database_url, autocommit=True) as connection:
            return [one.refusal for one in retry(Operator(connection), ids, Permission())]

    with ThreadPoolExecutor(3) as people:
        answers = [future.result() for future in [people.submit(replay_all) for _ in range(3)]]
    back = [sum(refusal is None for refusal in answer) for answer in answers]
    assert sum(back) == 40
    assert await drain(database_url, gateway) == 0
    assert replay_all() == ["done"] * 40
    assert set(gateway.accepted.values()) == {1}
    assert len(gateway.calls) == 40
    assert tables.states() == dict.fromkeys(ids, DONE)


async def test_a_replay_goes_on_under_the_old_key_and_a_higher_version(
    database_url: str,
    enqueue: Enqueue,
    tables: Tables,
    operator: Operator,
    gateway: ScriptedGateway,
) -> None:
    """A person's retry of a refused e-mail: the same effect, and old claims stay stale."""
    gateway.plan("k", REFUSES)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    before = tables.rows("SELECT claim_version FROM outbox.ended_job")[0]["claim_version"]
    assert [one.refusal for one in retry(operator, [job_id], Permission())] == [None]
    gateway.template = "mended {payload}"
    assert await drain(database_url, gateway) == 0
    assert [call.wire_key for call in gateway.calls] == ["k", "k"]
    assert gateway.calls[1].body == b'mended {"n":1}'
    assert tables.effect("k")["claim_version"] > before
    assert tables.states() == {job_id: DONE}


async def test_what_may_have_been_sent_is_not_sent_again_without_saying_so(
    database_url: str, enqueue: Enqueue, tables: Tables, operator: Operator
) -> None:
    """Held, given up, retried: only with a person's word that a second one is wanted (case-03)."""
    gateway = ScriptedGateway(memory_seconds=None)
    gateway.plan("k", ANSWER_LOST)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0
    assert [one.refusal for one in retry(operator, [job_id], Permission())] == ["held"]
    assert resolve(operator, ["k"], Resolution.GIVE_UP)[0].done
    assert [one.refusal for one in retry(operator, [job_id], Permission())] == [
        "may_have_been_sent"
    ]
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == 1
    assert [one.refusal for one in retry(operator, [job_id], ANYTHING)] == [None]
    assert await drain(database_url, gateway) == 0
    assert len(gateway.calls) == 2


@pytest.mark.parametrize("resolution", list(Resolution))
async def test_one_of_two_people_decides_about_a_held_effect(
    database_url: str, enqueue: Enqueue, tables: Tables, resolution: Resolution
) -> None:
    """Both decide at once, in opposite ways: one is written, the other is told."""
    gateway = ScriptedGateway(memory_seconds=None)
    gateway.plan("k", ANSWER_LOST)
    job_id = enqueue()
    assert await drain(database_url, gateway) == 0

    def decide(what: Resolution) -> bool:
        with psycopg.connect(database_url, autocommit=True) as connection:
            return resolve(Operator(connection), ["k"], what)[0].done

    with ThreadPoolExecutor(2) as people:
        futures = [people.submit(decide, what) for what in (resolution, Resolution.DELIVERED)]
        assert sorted(future.result() for future in futures) == [False, True]
    assert await drain(database_url, gateway) == 0
    states = {DONE, ("dead", "given_up")}
    assert tables.states()[job_id] in states
    assert len(gateway.calls) <= 2


def _before(
    run: Callable[..., object], put: Callable[[object], None], first: Callable[[], object]
) -> None:
    """Have something happen once before a batch runs."""

    async def wrapped(items: object) -> object:
        put(run)
        await first()  # type: ignore[misc]
        return await run(items)  # type: ignore[misc]

    put(wrapped)


def test_every_kind_of_outcome_is_tried() -> None:
    """A new action of a job may not escape these tests."""
    tried = {outcome.job_action for outcome in OUTCOMES.values()}
    assert tried == set(JobAction)
