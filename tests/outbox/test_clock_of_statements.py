"""Every time that a statement reads or writes is the clock's, not its transaction's.

A transaction may be open for long before a statement of ours comes to its turn: behind a pooler, in
the caller's own transaction, after a wait for locks.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.outbox.commands.scenes import CONSUMER, TOPIC, Claim, Scene
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime


LANE: dict[str, Any] = {"topics": [TOPIC], "priorities": [0]}
FLOORS: dict[str, Any] = LANE | {"floors": [-(2**63)], "limit": 9}
FRONT: dict[str, Any] = LANE | {"limit": 9}
MINE: dict[str, Any] = {"claimed_by": CONSUMER, "lease_seconds": 60}
#: Future for the transaction, past for the clock.
BETWEEN = "now() + interval '20 milliseconds'"
LATE = "now() + interval '50 milliseconds'"


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    """A transaction that has been open for a while."""
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        scene = Scene(url, connection)
        eventually(lambda: scene.sql(f"SELECT clock_timestamp() > {LATE}")[0][0])
        yield scene


def late(scene: Scene, table: str, column: str, seconds: float = 0) -> bool:
    """Whether the one row of a table has a time, plus so much, of after the transaction's start."""
    (row,) = scene.sql(
        f"SELECT {column} >= {LATE} + %s * interval '1 second' FROM outbox.{table}", seconds
    )
    return bool(row[0])


def lapse(scene: Scene) -> None:
    """Let all leases run out, by the clock."""
    scene.sql(f"UPDATE outbox.job SET lease_until = {BETWEEN} WHERE lease_until IS NOT NULL")


def test_a_claim_and_its_lease_begin_when_it_is_made(scene: Scene) -> None:
    """Else a lease would be over sooner than its holder believes."""
    scene.enqueue("k")
    scene.claim(lease_seconds=60)
    assert late(scene, "job", "claimed_at")
    assert late(scene, "job", "lease_until", 60)


def test_a_lease_that_ran_out_meanwhile_has_crashed(scene: Scene) -> None:
    """It is found and claimed, under a fresh lease."""
    scene.enqueue("k")
    scene.claim()
    lapse(scene)
    assert scene.run("find_crashed_job", **FRONT) == [{"found": True}]
    assert len(scene.run("claim_crashed_job", **FRONT, **MINE)) == 1
    assert late(scene, "job", "claimed_at")
    assert late(scene, "job", "lease_until", 60)


def test_a_heartbeat_counts_from_its_own_moment(scene: Scene) -> None:
    """An extended lease is a whole one."""
    scene.enqueue("k")
    (claim,) = scene.claim()
    assert extended(scene, claim)
    assert late(scene, "job", "lease_until", 60)


def extended(scene: Scene, claim: Claim) -> bool:
    """Whether a heartbeat finds its claim."""
    given = {"job_ids": [claim.id], "claim_versions": [claim.claim_version]}
    return bool(scene.run("extend_leases", **given, **MINE))


def test_a_lease_that_ran_out_meanwhile_holds_for_nothing(scene: Scene) -> None:
    """No heartbeat, no begin, no further try; a cancel is not too late."""
    scene.enqueue("k")
    (claim,) = scene.claim()
    lapse(scene)
    assert not extended(scene, claim)
    assert not scene.begin(claim)
    assert scene.run("cancel_jobs", job_ids=[claim.id])[0]["too_late"] is None


def test_a_further_try_needs_a_lease_that_still_holds(scene: Scene) -> None:
    """By the clock, again."""
    scene.enqueue("k")
    (claim,) = scene.claim()
    assert scene.begin(claim)
    scene.settle(claim, "give_back", "open")
    (claim,) = scene.claim()
    lapse(scene)
    assert scene.reopen(claim, 1) is None


@pytest.mark.parametrize("crashed", [False, True])
def test_a_job_that_expired_meanwhile_is_expired(scene: Scene, *, crashed: bool) -> None:
    """Its last moment may come while a transaction waits."""
    scene.enqueue("k")
    scene.sql(f"UPDATE outbox.job SET expires_at = {BETWEEN}")
    if crashed:
        scene.claim()
        lapse(scene)
        (row,) = scene.run("claim_crashed_job", **FRONT, **MINE)
    else:
        (row,) = scene.run("claim_jobs", **FLOORS, **MINE)
    assert row["expired"] is True


def test_a_try_is_open_since_it_was_begun(scene: Scene) -> None:
    """The first one and the last one."""
    claim = scene.begun("k")
    assert late(scene, "effect", "open_since")
    scene.settle(claim, "give_back", "open", nothing_open=True)
    scene.sql("UPDATE outbox.effect SET last_attempt_at = now()")
    (claim,) = scene.claim()
    assert scene.reopen(claim, 1)
    assert late(scene, "effect", "open_since")
    assert late(scene, "effect", "last_attempt_at")


def test_the_age_of_a_try_is_that_of_the_moment_of_reading(scene: Scene) -> None:
    """Too young an age would repeat what the provider has forgotten."""
    claim = scene.begun("k")
    scene.sql("UPDATE outbox.effect SET open_since = now()")
    (row,) = scene.run("read_effects", job_ids=[claim.id], effect_keys=["k"])
    assert row["open_seconds"] >= 0.05


def test_another_jobs_lease_that_ran_out_meanwhile_is_not_at_work(scene: Scene) -> None:
    """A crashed claim of another job keeps nobody waiting."""
    scene.begun("k")
    other = scene.enqueue("k")
    given = {"job_ids": [other], "effect_keys": ["k"]}
    assert scene.run("read_effects", **given)[0]["at_work_elsewhere"]
    lapse(scene)
    assert not scene.run("read_effects", **given)[0]["at_work_elsewhere"]


def test_an_effect_is_settled_when_it_is_settled(scene: Scene) -> None:
    """And a retry is due so long after that."""
    scene.delivered("k")
    assert late(scene, "effect", "settled_at")
    scene.backing_off("l", reached=False)
    assert late(scene, "job", "available_at", 60)


def test_a_time_that_came_meanwhile_is_no_later_time(scene: Scene) -> None:
    """Such a job is ready at once, or promoted, or let go by its line at once."""
    ((moment,),) = scene.sql(f"SELECT {BETWEEN}")
    scene.enqueue("ready", available_at=moment)
    scene.enqueue("blocked", ordering_key="line", available_at=moment)
    assert scene.sql("SELECT effect_key FROM outbox.job WHERE waiting IS NULL") == [("ready",)]
    assert len(scene.run("release_ordered_jobs", limit=9)) == 1
    assert scene.sql("SELECT 1 FROM outbox.job WHERE waiting IS NOT NULL") == []
    scene.backing_off("due", reached=False)
    scene.sql(f"UPDATE outbox.job SET available_at = {BETWEEN} WHERE waiting IS NOT NULL")
    assert len(scene.run("promote_due_jobs", limit=9)) == 1


NEW: dict[str, Any] = {
    "effect_key": "k", "payload": "{}", "payload_fingerprint": b"f" * 32, "priority": 0,
    "ordering_key": None, "max_attempts": None, "expires_at": None,
}  # fmt: skip


def insert(scene: Scene, name: str, available_at: datetime | None = None) -> bool:
    """Run one of the two inserts; whether it has notified."""
    given: dict[str, Any] = {"topic": TOPIC, "notify": True}
    if name == "insert_job":
        given |= NEW | {"available_at": available_at}
    else:
        at = available_at and available_at.isoformat()
        given["jobs"] = json.dumps([NEW | {"payload_fingerprint": "66" * 32, "available_at": at}])
    return scene.run(name, **given)[0]["notified"] is not None


@pytest.mark.parametrize("name", ["insert_job", "insert_jobs"])
def test_a_sleep_that_ended_meanwhile_is_not_notified(scene: Scene, name: str) -> None:
    """A notification for nobody would cost each producer."""
    scene.run(
        "note_consumer", claimed_by=CONSUMER, topics=[TOPIC], seen_seconds=60, sleep_seconds=60
    )
    assert late(scene, "consumer", "seen_until", 60)
    assert late(scene, "consumer", "sleeps_until", 60)
    assert insert(scene, name)
    scene.sql(f"UPDATE outbox.consumer SET sleeps_until = {BETWEEN}")
    assert not insert(scene, name)


@pytest.mark.parametrize("name", ["insert_job", "insert_jobs"])
def test_a_new_job_whose_time_came_meanwhile_is_ready(scene: Scene, name: str) -> None:
    """By the clock, in the statement that writes it."""
    ((moment,),) = scene.sql(f"SELECT {BETWEEN}")
    insert(scene, name, moment)
    assert scene.sql("SELECT waiting FROM outbox.job") == [(None,)]


def test_a_consumer_is_forgotten_an_hour_after_it_was_seen(scene: Scene) -> None:
    """By the clock; the one that signs off in any case, the others not."""
    for name, seen in {
        "me": "now()",
        "gone": f"{BETWEEN} - interval '1 hour'",
        "late": "now() - interval '59 minutes'",
    }.items():
        scene.run(
            "note_consumer", claimed_by=name, topics=[TOPIC], seen_seconds=0, sleep_seconds=None
        )
        scene.sql(f"UPDATE outbox.consumer SET seen_until = {seen} WHERE claimed_by = '{name}'")
    scene.run("forget_consumer", claimed_by="me")
    assert scene.sql("SELECT claimed_by FROM outbox.consumer") == [("late",)]


def test_a_job_that_expired_meanwhile_is_not_brought_back_to_expire(scene: Scene) -> None:
    """Refused; and if a person wants it all the same, it has no end any more."""
    dead = scene.dead("k")
    scene.sql(f"UPDATE outbox.ended_job SET expires_at = {BETWEEN}")
    given = {"job_ids": [dead.id], "send_again": False, "dry_run": False}
    assert scene.run("retry_jobs", ignore_expiry=False, **given)[0]["refusal"] == "expired"
    assert scene.run("retry_jobs", ignore_expiry=True, **given)[0]["refusal"] is None
    assert scene.sql("SELECT expires_at FROM outbox.job") == [(None,)]
    assert late(scene, "job", "available_at")


def test_a_decision_is_settled_when_it_is_made(scene: Scene) -> None:
    """A person's, about what is held."""
    held = scene.held("k")
    scene.run(
        "resolve_effects", effect_keys=["k"], job_ids=[held.id], resolution="give_up",
        message_id=None, detail="by a person",
    )  # fmt: skip
    assert late(scene, "effect", "settled_at")


def test_a_job_that_is_sent_again_is_due_by_then(scene: Scene) -> None:
    """Not before a person has said so."""
    held = scene.held("k")
    scene.run(
        "resolve_effects", effect_keys=["k"], job_ids=[held.id], resolution="send_again",
        message_id=None, detail="by a person",
    )  # fmt: skip
    assert late(scene, "job", "available_at")


def test_a_payload_whose_days_were_over_meanwhile_is_pruned(scene: Scene) -> None:
    """A day is 24 hours of the clock."""
    scene.dead("k")
    scene.sql(f"UPDATE outbox.ended_job SET ended_at = {BETWEEN} - interval '24 hours'")
    pruned = scene.run(
        "prune_ended_jobs", ended_as="dead", after_ended_at="-infinity", after_id=0, days=1, limit=9
    )
    assert len(pruned) == 1
