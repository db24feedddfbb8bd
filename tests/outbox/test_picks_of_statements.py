"""Which rows each statement picks, at the edges: one more, one less, somebody else's."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.outbox.commands.scenes import CONSUMER, TOPIC, Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


LOWEST = -(2**63)
MINE: dict[str, Any] = {"claimed_by": CONSUMER, "lease_seconds": 60}


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    """A transaction that is undone."""
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        yield Scene(url, connection)


#: An order that only an index happens to give is none.
INDEXES = pytest.mark.parametrize("indexes", ["on", "off"])


def plan_with(scene: Scene, indexes: str) -> None:
    """Let the planner use indexes, or not, on a table in which rows stand as they are written."""
    scene.sql("TRUNCATE outbox.job")
    for kind in ("indexscan", "indexonlyscan", "bitmapscan"):
        scene.sql(f"SET LOCAL enable_{kind} = {indexes}")


def place(scene: Scene, positions: dict[str, int]) -> None:
    """Enqueue ready jobs at these positions."""
    for key, position in positions.items():
        id_ = scene.enqueue(key)
        scene.sql("UPDATE outbox.job SET position = %s WHERE id = %s", position, id_)


def claimed(
    scene: Scene, *lanes: tuple[str, int], floor: int = LOWEST, limit: int = 9
) -> list[str]:
    """The keys that a claim takes, by position."""
    topics, priorities = zip(*lanes or [(TOPIC, 0)], strict=True)
    rows = scene.run(
        "claim_jobs", topics=list(topics), priorities=list(priorities),
        floors=[floor] * len(topics), limit=limit, **MINE,
    )  # fmt: skip
    return [row["effect_key"] for row in sorted(rows, key=lambda row: int(row["position"]))]


def crash(scene: Scene, *keys: str) -> None:
    """Let the leases of these jobs run out."""
    scene.sql(
        "UPDATE outbox.job SET claimed_by = 'dead', claimed_at = now(), lease_until = now()"
        " WHERE effect_key = ANY (%s)", list(keys),
    )  # fmt: skip


def crashed(scene: Scene, *lanes: tuple[str, int], front: int = 9) -> list[str]:
    """The keys that a look for crashed jobs takes; that it finds one must be said before."""
    topics, priorities = zip(*lanes or [(TOPIC, 0)], strict=True)
    given: dict[str, Any] = {
        "topics": list(topics), "priorities": list(priorities), "limit": front,
    }  # fmt: skip
    (found,) = scene.run("find_crashed_job", **given)
    keys = [row["effect_key"] for row in scene.run("claim_crashed_job", **given, **MINE)]
    assert found == {"found": bool(keys)}
    return keys


# -- claims --------------------------------------------------------------------------------------


def test_a_lane_is_one_topic_and_one_priority(scene: Scene) -> None:
    """Neither another topic's jobs nor another priority's come along."""
    scene.enqueue("mine")
    scene.enqueue("topic", topic="other")
    scene.enqueue("priority", priority=1)
    assert claimed(scene) == ["mine"]
    assert claimed(scene, ("other", 0), (TOPIC, 1)) == ["topic", "priority"]
    crash(scene, "mine", "topic", "priority")
    assert crashed(scene, ("third", 0), (TOPIC, 2)) == []
    assert crashed(scene) == ["mine"]
    assert crashed(scene) == []
    assert crashed(scene, (TOPIC, 1)) == ["priority"]
    assert crashed(scene, (TOPIC, 0), ("other", 0)) == ["topic"]


def test_a_claim_starts_at_its_floor(scene: Scene) -> None:
    """The job at the floor is among them: it may have been given back. What is below waits."""
    place(scene, {"above": 12, "below": 10, "at": 11})
    assert claimed(scene, floor=11) == ["at", "above"]
    assert claimed(scene, floor=10) == ["below"]


@INDEXES
def test_a_claim_takes_the_first_of_the_line(scene: Scene, indexes: str) -> None:
    """By position, whatever the order of ids and of rows."""
    plan_with(scene, indexes)
    place(scene, {"third": 13, "first": 11, "second": 12})
    assert claimed(scene, limit=1) == ["first"]
    assert claimed(scene, limit=1) == ["second"]
    crash(scene, "second", "first")
    assert crashed(scene) == ["first"]
    assert crashed(scene) == ["second"]


def test_a_limit_counts_over_all_lanes(scene: Scene) -> None:
    """And the first lane goes first."""
    for number in range(2):
        scene.enqueue(f"mine-{number}")
        scene.enqueue(f"other-{number}", topic="other")
    assert claimed(scene, (TOPIC, 0), ("other", 0), limit=3) == ["mine-0", "other-0", "mine-1"]


def test_one_crashed_job_is_taken_of_all_lanes(scene: Scene) -> None:
    """Alone means alone."""
    scene.enqueue("mine")
    scene.enqueue("mine-too")
    scene.enqueue("other", topic="other")
    crash(scene, "mine", "mine-too", "other")
    assert claimed(scene, (TOPIC, 0), ("other", 0)) == [], "not among others"
    assert crashed(scene, (TOPIC, 0), ("other", 0)) == ["mine"]


@INDEXES
def test_the_crashed_are_looked_for_at_the_front(scene: Scene, indexes: str) -> None:
    """Among the first by position, those without one left out: they wait, and nobody has them."""
    plan_with(scene, indexes)
    place(scene, {"third": 13, "first": 11, "second": 12, "waits": 1})
    crash(scene, "third", "waits")
    scene.sql(
        "UPDATE outbox.job SET position = NULL, waiting = 'resolve' WHERE effect_key = 'waits'"
    )
    # Rows that were written later stand behind.
    scene.sql("UPDATE outbox.job SET attempts = 0 WHERE effect_key IN ('first', 'second')")
    assert crashed(scene, front=2) == []
    assert crashed(scene, front=3) == ["third"]
    assert crashed(scene) == []


def test_only_a_lease_that_is_over_has_crashed(scene: Scene) -> None:
    """Neither one that holds nor none at all."""
    scene.enqueue("running")
    scene.claim()
    scene.enqueue("ready")
    assert crashed(scene) == []
    assert claimed(scene) == ["ready"]


@pytest.mark.parametrize(("expires", "expired"), [("NULL", False), ("1", False), ("-1", True)])
@pytest.mark.parametrize("name", ["claim_jobs", "claim_crashed_job"])
def test_a_claim_says_whether_its_job_is_past_its_end(
    scene: Scene, name: str, expires: str, *, expired: bool
) -> None:
    """Yes or no, never neither."""
    scene.enqueue("k")
    scene.sql(f"UPDATE outbox.job SET expires_at = now() + {expires} * interval '1 hour'")
    given: dict[str, Any] = {"topics": [TOPIC], "priorities": [0], **MINE}
    if name == "claim_jobs":
        rows = scene.run(name, floors=[LOWEST], limit=1, **given)
    else:
        crash(scene, "k")
        rows = scene.run(name, limit=9, **given)
    assert [row["expired"] for row in rows] == [expired]


@pytest.mark.parametrize("name", ["claim_jobs", "claim_crashed_job"])
def test_a_claim_changes_its_own_row_alone(scene: Scene, name: str) -> None:
    """One version more and one attempt more there, and none anywhere else."""
    place(scene, {"mine": 1, "next": 2})
    if name == "claim_jobs":
        assert claimed(scene, limit=1) == ["mine"]
    else:
        crash(scene, "mine", "next")
        assert crashed(scene) == ["mine"]
    assert scene.sql("SELECT effect_key, claim_version, attempts FROM outbox.job ORDER BY 1") == [
        ("mine", 1, 1), ("next", 0, 0),
    ]  # fmt: skip


def test_a_heartbeat_extends_its_own_rows_alone(scene: Scene) -> None:
    """Whatever else this consumer holds."""
    for key in ("a", "b"):
        scene.enqueue(key)
    first, second = scene.claim(limit=2)
    scene.sql("UPDATE outbox.job SET lease_until = clock_timestamp() + interval '9 seconds'")
    extend = {"job_ids": [first.id], "claim_versions": [first.claim_version]}
    assert scene.run("extend_leases", **extend, **MINE) == [{"id": first.id}]
    rows = scene.sql(
        "SELECT lease_until > now() + interval '30 seconds' FROM outbox.job ORDER BY id"
    )
    assert rows == [(True,), (False,)]
    nobody = {"job_ids": [second.id], "claim_versions": [second.claim_version]}
    assert scene.run("extend_leases", **nobody, **MINE | {"claimed_by": "other"}) == []
    # A claim that was taken over and one that never was: the version has to be the same.
    for version in (first.claim_version - 1, first.claim_version + 1):
        given = {"job_ids": [second.id], "claim_versions": [version]}
        assert scene.run("extend_leases", **given, **MINE) == []


# -- the ledger ----------------------------------------------------------------------------------


def read(scene: Scene, job_id: int, key: str = "k") -> dict[str, Any]:
    """What the ledger says of one job's effect."""
    (row,) = scene.run("read_effects", job_ids=[job_id], effect_keys=[key])
    return row


def test_an_effect_is_read_under_its_key(scene: Scene) -> None:
    """With the age of the first open try, and whether it is the only one."""
    claim = scene.begun("k")
    scene.begun("l")
    assert read(scene, claim.id)["effect_key"] == "k"
    assert read(scene, claim.id)["sole_open"] is True
    scene.sql("UPDATE outbox.effect SET open_since = now() - interval '1 hour'")
    assert read(scene, claim.id)["sole_open"] is False
    assert read(scene, claim.id)["open_seconds"] >= 3600
    scene.settle(claim, "retry", "open", nothing_open=True)
    assert read(scene, claim.id)["sole_open"] is False
    assert read(scene, claim.id)["open_seconds"] is None


def test_each_job_of_a_batch_reads_its_own_effect(scene: Scene) -> None:
    """One row for each that is there."""
    jobs = {scene.begun(key).id: key for key in ("k", "l", "m")}
    rows = scene.run(
        "read_effects", job_ids=[*jobs, 0], effect_keys=[*jobs.values(), "of no effect"]
    )
    assert sorted((row["job_id"], row["effect_key"]) for row in rows) == sorted(jobs.items())


def test_another_job_is_at_work_while_the_claim_that_began_holds(scene: Scene) -> None:
    """Not the job that asks, not a claim that has begun nothing yet, not another effect's job."""
    claim = scene.begun("k")
    second = scene.enqueue("k")
    assert read(scene, second)["at_work_elsewhere"]
    assert not read(scene, claim.id)["at_work_elsewhere"]
    crash(scene, "k")
    assert not read(scene, second)["at_work_elsewhere"]
    scene.begun("l")
    assert not read(scene, second)["at_work_elsewhere"]
    scene.sql("UPDATE outbox.job SET position = NULL, waiting = 'resolve' WHERE id = %s", second)
    assert crashed(scene) == ["k"]
    assert not read(scene, second)["at_work_elsewhere"]


def test_a_begin_of_another_claim_begins_nothing(scene: Scene) -> None:
    """Neither one before nor one after, nor another consumer's."""
    scene.enqueue("k")
    (claim,) = scene.claim()
    for version in (claim.claim_version - 1, claim.claim_version + 1):
        assert not scene.begin(type(claim)(claim.id, version, claim.effect_key))
    scene.sql("UPDATE outbox.job SET claimed_by = 'other'")
    assert not scene.begin(claim)
    scene.sql("UPDATE outbox.job SET claimed_by = %s", CONSUMER)
    assert scene.begin(claim)
    (row,) = scene.sql(
        "SELECT requests_sent, open_since = first_attempt_at, open_since = last_attempt_at,"
        " state, attempted_by, claim_version FROM outbox.effect"
    )
    assert row == (1, True, True, "open", CONSUMER, claim.claim_version)


# -- the queue -----------------------------------------------------------------------------------

HOUR = timedelta(hours=1)
#: What is enqueued: how far off its time is, its line, and whether it is ready and waits for what.
ENQUEUED = [
    (None, None, True, None),
    (-HOUR, None, True, None),
    (HOUR, None, False, "schedule"),
    (None, "line", False, "order"),
    (HOUR, "line", False, "order"),
]


def insert(
    scene: Scene, name: str, offset: timedelta | None, line: str | None, *, notify: bool = True
) -> bool:
    """Run one of the two inserts; whether it has notified."""
    at = None if offset is None else (datetime.now(UTC) + offset).isoformat()
    job = {
        "effect_key": "k", "payload": "{}", "payload_fingerprint": b"f" * 32, "expires_at": None,
        "available_at": at, "priority": 0, "ordering_key": line, "max_attempts": None,
    }  # fmt: skip
    given: dict[str, Any] = {"topic": TOPIC, "notify": notify}
    if name == "insert_job":
        rows = scene.run(name, **given, **job)
    else:
        job["payload_fingerprint"] = "66" * 32
        rows = scene.run(name, **given, jobs=json.dumps([job]))
    assert len(rows) == 1
    return rows[0]["notified"] is not None


def sleeper(scene: Scene, topic: str = TOPIC, seconds: float | None = 60) -> None:
    """A consumer that says until when it sleeps."""
    scene.run(
        "note_consumer", claimed_by="sleeper", topics=[topic], seen_seconds=60,
        sleep_seconds=seconds,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["insert_job", "insert_jobs"])
@pytest.mark.parametrize(("offset", "line", "ready", "waiting"), ENQUEUED)
def test_a_new_job_is_ready_or_waits_for_one_thing(
    scene: Scene, name: str, offset: timedelta | None, line: str | None, waiting: str | None,
    *, ready: bool,
) -> None:  # fmt: skip
    """A job that is ready has its own number as its position; who sleeps hears of it."""
    sleeper(scene)
    assert insert(scene, name, offset, line) is (waiting != "schedule")
    assert scene.sql("SELECT waiting, position = id FROM outbox.job") == [
        (waiting, True if ready else None)
    ]


@pytest.mark.parametrize("name", ["insert_job", "insert_jobs"])
def test_only_a_sleeper_of_the_topic_is_notified(scene: Scene, name: str) -> None:
    """Nobody is there, one is awake, one serves another topic, one slept; and it can be off."""
    assert not insert(scene, name, None, None)
    for topic, seconds in ((TOPIC, None), ("other", 60.0), (TOPIC, -60.0)):
        sleeper(scene, topic, seconds)
        assert not insert(scene, name, None, None)
    sleeper(scene)
    assert not insert(scene, name, None, None, notify=False)
    assert insert(scene, name, None, None)


def test_many_jobs_keep_their_order(scene: Scene) -> None:
    """Ids and positions grow as they were given, and come back so."""
    job = {
        "payload": "{}", "payload_fingerprint": "66" * 32, "priority": 0, "expires_at": None,
        "available_at": None, "ordering_key": None, "max_attempts": None,
    }  # fmt: skip
    jobs = json.dumps([job | {"effect_key": key} for key in ("c", "a", "b")])
    rows = scene.run("insert_jobs", topic=TOPIC, notify=False, jobs=jobs)
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    assert scene.sql("SELECT effect_key FROM outbox.job ORDER BY position") == [
        ("c",), ("a",), ("b",),
    ]  # fmt: skip


def wait(scene: Scene, waiting: str, hours: dict[str, float]) -> None:
    """Enqueue jobs that wait, available so many hours from now."""
    for key, offset in hours.items():
        id_ = scene.enqueue(key)
        scene.sql(
            "UPDATE outbox.job SET waiting = %s, position = NULL,"
            " available_at = now() + %s * interval '1 hour' WHERE id = %s", waiting, offset, id_,
        )  # fmt: skip


def ready(scene: Scene) -> list[str]:
    """The keys of the jobs with a position, in its order."""
    rows = scene.sql("SELECT effect_key FROM outbox.job WHERE waiting IS NULL ORDER BY position")
    return [row[0] for row in rows]


@INDEXES
def test_those_whose_time_has_come_are_promoted_in_its_order(scene: Scene, indexes: str) -> None:
    """Scheduled and backing off; neither those to come nor those that wait for something else."""
    plan_with(scene, indexes)
    wait(scene, "schedule", {"third": -1, "later": 1})
    wait(scene, "backoff", {"second": -2, "first": -3, "much-later": 2})
    wait(scene, "resolve", {"held": -1})
    wait(scene, "order", {"blocked": -1})
    assert len(scene.run("promote_due_jobs", limit=1)) == 1
    assert ready(scene) == ["first"]
    assert len(scene.run("promote_due_jobs", limit=9)) == 2
    assert ready(scene) == ["first", "second", "third"]
    assert scene.run("promote_due_jobs", limit=9) == []


def test_a_job_whose_effect_is_open_goes_before_all_others(scene: Scene) -> None:
    """And no other does."""
    scene.enqueue("new")
    wait(scene, "backoff", {"plain": -2, "open": -1})
    scene.sql("UPDATE outbox.job SET retry_first = true WHERE effect_key = 'open'")
    scene.run("promote_due_jobs", limit=9)
    assert ready(scene) == ["open", "new", "plain"]
    assert scene.sql("SELECT effect_key FROM outbox.job WHERE position < 0") == [("open",)]


def test_jobs_beside_an_effect_that_is_held_no_more_come_back(scene: Scene) -> None:
    """Whatever became of it; those beside a held one stay, as do those that wait otherwise."""
    for key in ("held", "open", "delivered"):
        scene.held(key)
    scene.sql("UPDATE outbox.effect SET state = 'open' WHERE effect_key = 'open'")
    scene.sql(
        "UPDATE outbox.effect SET state = 'delivered', request = NULL, settled_at = now()"
        " WHERE effect_key = 'delivered'"
    )
    scene.backing_off("later", reached=True)
    assert len(scene.run("release_held_jobs", limit=1)) == 1
    assert len(scene.run("release_held_jobs", limit=9)) == 1
    assert sorted(ready(scene)) == ["delivered", "open"]


def line_up(scene: Scene, *keys: str) -> None:
    """Enqueue jobs, each in the line of its first letter."""
    for key in keys:
        scene.enqueue(key, ordering_key=key[0])


@INDEXES
def test_the_first_of_each_line_is_let_go(scene: Scene, indexes: str) -> None:
    """One of each, the lowest id of each, in every line, up to the limit."""
    plan_with(scene, indexes)
    line_up(scene, "b1", "a1", "a2", "c1", "b2", "d1")
    scene.sql("UPDATE outbox.job SET attempts = 0 WHERE effect_key = 'a1'")
    scene.enqueue("alone")
    assert len(scene.run("release_ordered_jobs", limit=3)) == 3
    assert sorted(ready(scene)) == ["a1", "alone", "b1", "c1"]
    assert len(scene.run("release_ordered_jobs", limit=3)) == 1
    assert sorted(ready(scene)) == ["a1", "alone", "b1", "c1", "d1"]
    assert scene.run("release_ordered_jobs", limit=3) == []


@pytest.mark.parametrize("waiting", [None, "backoff", "schedule", "resolve"])
def test_a_line_waits_for_its_head(scene: Scene, waiting: str | None) -> None:
    """Whether that is ready or waits; another line's does not matter."""
    line_up(scene, "a1", "a2", "b1")
    scene.run("release_ordered_jobs", limit=1)
    assert ready(scene) == ["a1"]
    scene.sql(
        "UPDATE outbox.job SET waiting = %s, position = CASE WHEN %s::text IS NULL THEN id END,"
        " available_at = now() WHERE effect_key = 'a1'", waiting, waiting,
    )  # fmt: skip
    assert len(scene.run("release_ordered_jobs", limit=9)) == 1
    assert "b1" in ready(scene)
    scene.sql("DELETE FROM outbox.job WHERE effect_key = 'a1'")
    assert len(scene.run("release_ordered_jobs", limit=9)) == 1
    assert "a2" in ready(scene)


def test_a_head_whose_time_has_not_come_is_scheduled(scene: Scene) -> None:
    """One whose time has passed is ready."""
    now = datetime.now(UTC)
    scene.enqueue("later", ordering_key="a", available_at=now + HOUR)
    scene.enqueue("past", ordering_key="b", available_at=now - HOUR)
    assert len(scene.run("release_ordered_jobs", limit=9)) == 2
    assert scene.sql("SELECT effect_key, waiting FROM outbox.job ORDER BY id") == [
        ("later", "schedule"), ("past", None),
    ]  # fmt: skip


def test_a_second_note_replaces_the_first(scene: Scene) -> None:
    """Topics, until when it was seen, until when it sleeps."""
    sleeper(scene)
    scene.run(
        "note_consumer", claimed_by="sleeper", topics=["other"], seen_seconds=3600,
        sleep_seconds=None,
    )  # fmt: skip
    assert scene.sql(
        "SELECT topics, seen_until > now() + interval '59 minutes', sleeps_until"
        " FROM outbox.consumer"
    ) == [(["other"], True, None)]


# -- draining ------------------------------------------------------------------------------------


def pending(scene: Scene, topic: str = TOPIC) -> bool:
    """Whether a drain of this topic still waits for something."""
    (row,) = scene.run("find_pending_job", topics=["none", topic])
    return bool(row["found"])


def test_a_drain_waits_for_what_is_ready_or_running(scene: Scene) -> None:
    """Of its own topics."""
    assert not pending(scene)
    scene.enqueue("k")
    assert pending(scene)
    scene.claim()
    assert pending(scene)
    assert not pending(scene, "other")


def test_a_drain_waits_for_a_next_try_and_for_what_is_due(scene: Scene) -> None:
    """Whenever the try comes; but not for what is scheduled for later."""
    scene.backing_off("k", reached=True)
    assert pending(scene)
    assert not pending(scene, "other")
    scene.sql("UPDATE outbox.job SET waiting = 'schedule'")
    assert not pending(scene)
    scene.sql("UPDATE outbox.job SET available_at = clock_timestamp()")
    assert pending(scene)
    assert not pending(scene, "other")


def test_a_drain_waits_for_nothing_that_a_person_has_to_decide(scene: Scene) -> None:
    """It would wait for ever."""
    scene.held("k")
    assert not pending(scene)


@pytest.mark.parametrize(
    ("ahead", "waits"),
    [("ready", True), ("backoff", True), ("schedule", False), ("resolve", False)],
)
def test_a_drain_waits_for_a_line_that_moves(scene: Scene, ahead: str, waits: bool) -> None:
    """Not for one behind a job that waits for a later time or for a person."""
    first = scene.enqueue("k1", ordering_key="k")
    scene.enqueue("k2", ordering_key="k")
    scene.run("release_ordered_jobs", limit=1)
    if ahead != "ready":
        scene.sql(
            "UPDATE outbox.job SET position = NULL, waiting = %s,"
            " available_at = clock_timestamp() + interval '1 hour' WHERE id = %s", ahead, first,
        )  # fmt: skip
    assert pending(scene) is waits
    assert not pending(scene, "other")
