"""``outbox cancel``: only what surely was not and will not be requested is called off."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox.cancel import Cancelled, cancel
from outbox.operator import connect

if TYPE_CHECKING:
    from tests.outbox.commands.conftest import Command
    from tests.outbox.commands.scenes import Scene


def test_a_job_that_waits_is_cancelled(command: Command, scene: Scene) -> None:
    """Ready, scheduled or blocked: no request was begun, so there will be none."""
    ids = [
        scene.enqueue("k-1"),
        scene.enqueue("k-2", available_at=datetime.now(UTC) + timedelta(hours=1)),
        scene.enqueue("k-3", ordering_key="o"),
    ]
    answer = command("cancel", *ids, "--json")
    assert (answer.code, answer.err) == (0, "")
    assert (answer.json["cancelled"], answer.json["skipped"]) == (3, 0)
    assert {scene.state(job_id) for job_id in ids} == {("cancelled", "by_person")}
    assert scene.claim() == []


def test_a_claimed_job_is_too_late(command: Command, scene: Scene) -> None:
    """Between claim and begin a consumer may start any moment; it goes on undisturbed."""
    scene.enqueue("k-1")
    (claim,) = scene.claim()
    answer = command("cancel", claim.id)
    assert (answer.code, answer.out) == (1, "")
    assert "too late: a consumer is at work on it" in answer.err
    assert scene.begin(claim)


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        ("calling", "running"),
        ("crashed", "may_have_been_sent"),
        ("backing_off", "may_have_been_sent"),
        ("held", "held"),
        ("delivered", "delivered"),
        ("dead", "dead"),
        ("unknown", "unknown"),
    ],
)
def test_a_job_whose_request_was_begun_is_too_late(
    command: Command, scene: Scene, moment: str, reason: str
) -> None:
    """During the call, after a crash, before the next try, when settled: never two ends."""
    match moment:
        case "calling" | "crashed":
            job_id = scene.begun("k-1").id
        case "backing_off":
            job_id = scene.backing_off("k-1", reached=True).id
        case "held":
            job_id = scene.held("k-1").id
        case "delivered":
            job_id = scene.delivered("k-1").id
        case "dead":
            job_id = scene.dead("k-1").id
        case _:
            job_id = 4711
    if moment == "crashed":
        scene.sql("UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 second'")
    before = scene.sql("SELECT id, state FROM outbox.job_status")
    answer = command("cancel", job_id, "--json")
    assert answer.code == 1
    assert answer.json["jobs"] == [{"job_id": job_id, "refusal": reason}]
    assert answer.err.startswith(f"outbox: job {job_id}: not cancelled: ")
    assert scene.sql("SELECT id, state FROM outbox.job_status") == before


def test_a_job_whose_tries_surely_never_arrived_is_cancelled(
    command: Command, scene: Scene
) -> None:
    """Nothing is open, so nothing can have been sent."""
    claim = scene.backing_off("k-1", reached=False)
    assert command("cancel", claim.id).out == f"job {claim.id}: cancelled\n"
    assert scene.state(claim.id) == ("cancelled", "by_person")


def test_a_crashed_claim_without_a_request_is_cancelled(command: Command, scene: Scene) -> None:
    """Its lease ran out before it began; whoever held it can begin no more."""
    scene.enqueue("k-1")
    (claim,) = scene.claim(lease_seconds=-1)
    assert command("cancel", claim.id).code == 0
    assert not scene.begin(claim)


def test_a_second_job_of_a_key_that_may_have_been_sent_is_too_late(
    command: Command, scene: Scene
) -> None:
    """Cancelling it would say that no e-mail goes out, and one may have gone."""
    scene.backing_off("k-1", reached=True)
    second = scene.enqueue("k-1")
    assert command("cancel", second).code == 1
    assert scene.state(second)[0] == "ready"


def test_a_job_that_only_shares_the_key_is_cancelled(command: Command, scene: Scene) -> None:
    """The ledger's row is about another payload: nothing was begun for this one."""
    scene.delivered("k-1")
    other = scene.enqueue("k-1", payload={"to": "else@example.com"})
    assert command("cancel", other).code == 0


def test_cancelling_again_says_the_same(command: Command, scene: Scene) -> None:
    """Two people cancel one job: both are told that it is cancelled, and it has one end."""
    job_id = scene.enqueue("k-1")
    assert command("cancel", job_id).code == command("cancel", job_id).code == 0
    assert scene.state(job_id) == ("cancelled", "by_person")


def test_of_many_jobs_each_has_its_answer(command: Command, scene: Scene) -> None:
    """Exit code 1 where one is too late; the others are cancelled all the same."""
    claim = scene.begun("k-1")
    ready = scene.enqueue("k-2")
    answer = command("cancel", claim.id, ready, "--json")
    assert answer.code == 1
    assert answer.json["jobs"] == [
        {"job_id": claim.id, "refusal": "running"},
        {"job_id": ready, "refusal": None},
    ]


def cancelled(scene: Scene, *job_ids: int) -> list[Cancelled]:
    """Cancel on a connection of its own."""
    with connect(scene.url) as operator:
        return cancel(operator, job_ids)


def test_a_cancel_that_waited_for_a_claim_is_too_late(scene: Scene) -> None:
    """The claim had the row's lock first: the cancel sees what it wrote."""
    job_id = scene.enqueue("k-1")
    claiming = (
        "UPDATE outbox.job SET claim_version = 1, claimed_by = 'c', claimed_at = clock_timestamp(),"
        " lease_until = clock_timestamp() + interval '1 minute' WHERE id = %s"
    )
    with ThreadPoolExecutor() as pool, scene.lock(claiming, job_id) as claim:
        answer = pool.submit(cancelled, scene, job_id)
        scene.wait_for_blocked(1)
        claim.commit()
        assert answer.result() == [Cancelled(job_id, "running")]


def test_a_claim_passes_over_a_job_that_is_being_cancelled(scene: Scene) -> None:
    """The cancel had the row's lock first: no claim waits for it or takes the job."""
    job_id = scene.enqueue("k-1")
    with psycopg.connect(scene.url) as person:
        person.execute("SELECT FROM outbox.job WHERE id = %s FOR UPDATE", (job_id,))
        assert scene.claim() == []
    assert cancelled(scene, job_id) == [Cancelled(job_id, None)]


def test_a_begin_that_waited_for_a_cancel_finds_its_claim_gone(scene: Scene) -> None:
    """A claim whose lease ran out, about to begin, while its job is being called off."""
    job_id = scene.enqueue("k-1")
    (claim,) = scene.claim()
    scene.sql("UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 second'")
    assert cancelled(scene, job_id) == [Cancelled(job_id, None)]
    assert not scene.begin(claim)
    assert scene.sql("SELECT count(*) FROM outbox.effect") == [(0,)]


def test_a_cancel_sees_a_try_that_came_and_went_while_it_waited(scene: Scene) -> None:
    """Blocked by one job, it still learns that the other was tried meanwhile and may be sent."""
    blocked, tried = scene.enqueue("k-1"), scene.enqueue("k-2")
    with ThreadPoolExecutor() as pool:
        with scene.lock("SELECT FROM outbox.job WHERE id = %s FOR UPDATE", blocked):
            answer = pool.submit(cancelled, scene, blocked, tried)
            scene.wait_for_blocked(1)
            (claim,) = scene.claim()
            assert claim.id == tried
            assert scene.begin(claim)
            scene.settle(claim, "retry", "open", nothing_open=False, reason="reset")
        assert answer.result() == [
            Cancelled(blocked, None),
            Cancelled(tried, "may_have_been_sent"),
        ]
    assert scene.state(tried)[0] == "backing_off"


def test_a_late_settle_does_not_undo_a_cancel(command: Command, scene: Scene) -> None:
    """Cancelled is final: the claim that was lost writes nothing any more."""
    scene.enqueue("k-1")
    (claim,) = scene.claim(lease_seconds=-1)
    assert command("cancel", claim.id).code == 0
    scene.settle(claim, "dead", reason="unrenderable")
    assert scene.state(claim.id) == ("cancelled", "by_person")
