"""What each statement locks, in which order, and what it does about other people's locks."""

from __future__ import annotations

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from outbox import statements
from tests.outbox.commands.scenes import CONSUMER, TOPIC, Claim, Scene

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future


Given = dict[str, Any]


class Prepare(Protocol):
    """Brings the database into a state for the statement of its name, and returns what to give."""

    __name__: str

    def __call__(self, scene: Scene) -> Given:
        """Do so."""


LANE: Given = {"topics": [TOPIC], "priorities": [0]}
MINE: Given = {"claimed_by": CONSUMER, "lease_seconds": 60}
CLAIM: Given = LANE | MINE | {"floors": [-(2**63)], "limit": 9}
CRASHED: Given = LANE | MINE | {"limit": 9}
PRUNE: Given = {
    "ended_as": "dead", "after_ended_at": "-infinity", "after_id": 0, "days": 0, "limit": 9,
}  # fmt: skip
KEYS = ("c", "b", "a")
PATIENCE = "SET lock_timeout = '5s'"
NO_PATIENCE = "SET lock_timeout = '100ms'"


@pytest.fixture
def scene(url: str) -> Iterator[Scene]:
    """An empty database."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table in ("job", "effect", "ended_job", "consumer"):
            connection.execute(f"DELETE FROM outbox.{table}".encode())
        connection.execute(PATIENCE)
        yield Scene(url, connection)


# -- the statements, each with something to lock -------------------------------------------------


def claims(scene: Scene) -> list[Claim]:
    """Three claimed jobs, whose keys have the opposite order of their ids."""
    for key in KEYS:
        scene.enqueue(key)
    return scene.claim(limit=3)


def begun(scene: Scene) -> list[Claim]:
    """Three claimed jobs with open effects."""
    found = claims(scene)
    assert all(scene.begin(claim) for claim in found)
    return found


def crash(scene: Scene) -> None:
    """Let all leases run out."""
    scene.sql("UPDATE outbox.job SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")


def claim_jobs(scene: Scene) -> Given:
    """Three ready jobs."""
    for key in KEYS:
        scene.enqueue(key)
    return CLAIM


def claim_crashed_job(scene: Scene) -> Given:
    """Three crashed ones."""
    claims(scene)
    crash(scene)
    return CRASHED


def promote_due_jobs(scene: Scene) -> Given:
    """Three whose time has come."""
    claim_jobs(scene)
    scene.sql(
        "UPDATE outbox.job SET waiting = 'backoff', position = NULL, available_at = enqueued_at"
    )
    return {"limit": 9}


def release_held_jobs(scene: Scene) -> Given:
    """Three that wait beside effects that are no longer held."""
    for key in KEYS:
        scene.held(key)
    scene.sql("UPDATE outbox.effect SET state = 'open', open_since = NULL")
    return {"limit": 9}


def prune_ended_jobs(scene: Scene) -> Given:
    """Three dead jobs, each with a frozen request that never left."""
    for key in KEYS:
        scene.settle(scene.begun(key), "dead", "open", reason="max_attempts")
    return PRUNE


def of_claims(found: list[Claim]) -> Given:
    """What every statement of claims is given, highest id first."""
    found = sorted(found, key=lambda claim: -claim.id)
    request = b"request"
    return {
        "job_ids": [claim.id for claim in found],
        "claim_versions": [claim.claim_version for claim in found],
        "wire_keys": [claim.effect_key for claim in found],
        "effect_keys": [claim.effect_key for claim in found],
        "requests": [request] * 3,
        "request_hashes": [hashlib.sha256(request).digest()] * 3,
        "requests_seen": [1] * 3,
        "outcomes": json.dumps(
            [
                {
                    "job_id": claim.id,
                    "claim_version": claim.claim_version,
                    "effect_key": claim.effect_key,
                    "requests_seen": 1,
                    "effect_state": "open",
                    "nothing_open": False,
                    "job_action": "retry",
                    "refund": False,
                    "delay_seconds": 0,
                }
                for claim in found
            ]
        ),
        "provider": "resend",
        "account": "acct",
    } | MINE


def extend_leases(scene: Scene) -> Given:
    """Three claims."""
    return of_claims(claims(scene))


def begin_effects(scene: Scene) -> Given:
    """Three claims."""
    return of_claims(claims(scene))


def reopen_effects(scene: Scene) -> Given:
    """Three claims with open effects."""
    return of_claims(begun(scene))


def settle_attempts(scene: Scene) -> Given:
    """The same."""
    return of_claims(begun(scene))


def resolve_effects(scene: Scene) -> Given:
    """Three held effects."""
    jobs = [scene.held(key).id for key in KEYS]
    return {
        "effect_keys": list(KEYS), "job_ids": jobs, "resolution": "send_again",
        "message_id": None, "detail": "by a person",
    }  # fmt: skip


def retry_jobs(scene: Scene) -> Given:
    """Three rejected ones."""
    jobs = [scene.rejected(key).id for key in KEYS]
    return {"job_ids": jobs, "send_again": False, "ignore_expiry": False, "dry_run": False}


def lock_jobs(scene: Scene) -> Given:
    """Three jobs, written last to first."""
    scene.sql("ALTER SEQUENCE outbox.job_position INCREMENT -1 RESTART 3 MAXVALUE 4 MINVALUE -9")
    try:
        jobs = [scene.enqueue(key) for key in KEYS]
    finally:
        scene.sql(
            "ALTER SEQUENCE outbox.job_position INCREMENT 1 RESTART 9 NO MAXVALUE NO MINVALUE"
        )
    return {"job_ids": jobs}


def lock_held_jobs(scene: Scene) -> Given:
    """Three held ones, whose ids have the order neither of their rows nor of their keys."""
    for key, id_ in {"b": 3, "c": 1, "a": 2}.items():
        enqueued = scene.enqueue(key)
        scene.sql(
            "UPDATE outbox.job SET id = %s, waiting = 'resolve', position = NULL WHERE id = %s",
            -id_ * 1000, enqueued,
        )  # fmt: skip
    scene.sql("UPDATE outbox.job SET id = -id / 1000 WHERE effect_key = 'b'")
    scene.sql("UPDATE outbox.job SET id = -id / 1000 WHERE effect_key = 'c'")
    scene.sql("UPDATE outbox.job SET id = -id / 1000 WHERE effect_key = 'a'")
    return {"effect_keys": list(KEYS)}


def lock_ended_jobs(scene: Scene) -> Given:
    """The same, dead."""
    jobs = [scene.dead(key).id for key in KEYS]
    scene.sql("UPDATE outbox.ended_job SET id = -id")
    return {"job_ids": [-id_ for id_ in jobs]}


def name_of(value: object) -> str:
    """For the ids of tests."""
    return getattr(value, "__name__", str(value))


def execute(connection: psycopg.Connection[Any], prepare: Prepare, given: Given) -> int:
    """Run the statement that a scene is named after; how many rows came."""
    name = prepare.__name__
    given = {key: given[key] for key in statements.parameters(name)}
    return len(connection.execute(statements.psycopg(name).encode(), given).fetchall())


@contextmanager
def running(scene: Scene, prepare: Prepare, given: Given) -> Iterator[Future[int]]:
    """The statement at work on a connection of its own."""
    with psycopg.connect(scene.url, autocommit=True) as connection, ThreadPoolExecutor() as pool:
        connection.execute(PATIENCE)
        yield pool.submit(execute, connection, prepare, given)


# -- passing over --------------------------------------------------------------------------------

PASS_OVER: dict[Prepare, tuple[str, int]] = {
    claim_jobs: ("job", 2),
    claim_crashed_job: ("job", 1),
    promote_due_jobs: ("job", 2),
    release_held_jobs: ("job", 2),
    prune_ended_jobs: ("ended_job", 2),
}


@pytest.mark.parametrize("strength", ["UPDATE", "SHARE"])
@pytest.mark.parametrize("prepare", PASS_OVER, ids=name_of)
def test_what_somebody_else_has_locked_is_passed_over(
    scene: Scene, prepare: Prepare, strength: str
) -> None:
    """Without waiting for it, and the rest is taken."""
    given = prepare(scene)
    table, rest = PASS_OVER[prepare]
    with scene.lock(f"SELECT FROM outbox.{table} ORDER BY id LIMIT 1 FOR {strength}"):
        scene.sql(NO_PATIENCE)
        assert execute(scene.connection, prepare, given) == rest


def test_a_held_effect_that_is_locked_keeps_no_job_beside_it(scene: Scene) -> None:
    """Only the job's row is locked: what the ledger says stays said."""
    given = release_held_jobs(scene)
    with scene.lock("SELECT FROM outbox.effect FOR UPDATE"):
        scene.sql(NO_PATIENCE)
        assert execute(scene.connection, release_held_jobs, given) == 3


LOOKING = {
    "claim_jobs": "picked",
    "claim_crashed_job": "picked",
    "promote_due_jobs": "due",
    "release_held_jobs": "released",
}


@pytest.mark.parametrize(
    "prepare", [claim_jobs, claim_crashed_job, promote_due_jobs, release_held_jobs], ids=name_of
)
def test_what_is_taken_between_the_look_and_the_lock_is_left(
    scene: Scene, prepare: Prepare
) -> None:
    """A row is asked the same again once it is locked. The statement's own search stands still
    between the two here: as a cursor, it has looked when it is declared, and locks when it fetches.
    """
    given = prepare(scene)
    name = prepare.__name__
    search = statements.psycopg(name).rpartition("UPDATE outbox.job SET")[0]
    query = f"{search} SELECT id FROM {LOOKING[name]}"
    needed = {key: given[key] for key in statements.parameters(name) if f"%({key})b" in search}
    with psycopg.connect(scene.url) as slow, slow.cursor("search") as cursor:
        cursor.execute(query.encode(), needed)
        while execute(scene.connection, prepare, given):
            pass
        assert cursor.fetchall() == []


# -- no stronger than needed ---------------------------------------------------------------------

WEAK: dict[Prepare, int] = {
    claim_jobs: 3, claim_crashed_job: 1, promote_due_jobs: 3, release_held_jobs: 3,
    extend_leases: 3, begin_effects: 3, reopen_effects: 3, settle_attempts: 3,
    resolve_effects: 3, retry_jobs: 3, prune_ended_jobs: 3,
}  # fmt: skip


@pytest.mark.parametrize("prepare", WEAK, ids=name_of)
def test_a_foreign_key_of_somebody_elses_table_is_in_nobodys_way(
    scene: Scene, prepare: Prepare
) -> None:
    """A row that refers to a job or an effect locks its key; none of our statements changes one."""
    given = prepare(scene)
    tables = ["job", "effect"] if prepare is not retry_jobs else ["effect"]
    tables += ["ended_job"] if prepare is prune_ended_jobs else []
    with psycopg.connect(scene.url) as other:
        for table in tables:
            other.execute(f"SELECT FROM outbox.{table} FOR KEY SHARE".encode())
        scene.sql(NO_PATIENCE)
        assert execute(scene.connection, prepare, given) == WEAK[prepare]


# -- waiting -------------------------------------------------------------------------------------

WAIT: list[tuple[Prepare, str]] = [
    (extend_leases, "job"),
    (begin_effects, "job"),
    (reopen_effects, "job"),
    (settle_attempts, "job"),
    (reopen_effects, "effect"),
    (settle_attempts, "effect"),
    (resolve_effects, "effect"),
    (lock_jobs, "job"),
    (lock_held_jobs, "job"),
    (lock_ended_jobs, "ended_job"),
]


@pytest.mark.parametrize(("prepare", "table"), WAIT, ids=name_of)
def test_what_must_not_be_missed_is_waited_for(scene: Scene, prepare: Prepare, table: str) -> None:
    """A lock that is let go without a change was no loss of anything."""
    given = prepare(scene)
    lock = f"SELECT FROM outbox.{table} FOR UPDATE"
    with scene.lock(lock) as other, running(scene, prepare, given) as work:
        scene.wait_for_blocked(1)
        other.rollback()
        assert work.result(10) == 3
    if prepare is settle_attempts:
        assert scene.sql("SELECT DISTINCT waiting FROM outbox.job") == [("backoff",)]
    if prepare is reopen_effects:
        assert scene.sql("SELECT DISTINCT requests_sent FROM outbox.effect") == [(2,)]


DELIVERED = "SET state = 'delivered', request = NULL, settled_at = clock_timestamp()"
CHANGED_MEANWHILE: list[tuple[Prepare, str]] = [
    (reopen_effects, "SET requests_sent = 2"),
    (settle_attempts, "SET requests_sent = 2"),
    (resolve_effects, DELIVERED),
    (retry_jobs, DELIVERED),
    (prune_ended_jobs, "SET open_since = clock_timestamp()"),
]


@pytest.mark.parametrize(("prepare", "change"), CHANGED_MEANWHILE, ids=name_of)
def test_an_effect_that_was_changed_while_it_was_waited_for_stays(
    scene: Scene, prepare: Prepare, change: str
) -> None:
    """What was asked of it is asked again, and the answer is another by now."""
    given = prepare(scene)
    everything = "SELECT * FROM outbox.effect ORDER BY effect_key"
    with scene.lock(f"UPDATE outbox.effect {change}") as other:
        changed = other.execute(everything.encode()).fetchall()
        with running(scene, prepare, given) as work:
            scene.wait_for_blocked(1)
            other.commit()
            work.result(10)
    assert scene.sql(everything) == changed


@pytest.mark.parametrize("strength", ["SHARE", "NO KEY UPDATE"])
@pytest.mark.parametrize("prepare", [lock_jobs, lock_held_jobs, lock_ended_jobs], ids=name_of)
def test_a_person_waits_for_all_who_look(scene: Scene, prepare: Prepare, strength: str) -> None:
    """And is alone with the rows then."""
    given = prepare(scene)
    table = "ended_job" if prepare is lock_ended_jobs else "job"
    with scene.lock(f"SELECT FROM outbox.{table} FOR {strength}"):
        scene.sql(NO_PATIENCE)
        with pytest.raises(LockNotAvailable):
            execute(scene.connection, prepare, given)


@pytest.mark.parametrize("prepare", [lock_jobs, lock_held_jobs, lock_ended_jobs], ids=name_of)
def test_a_person_locks_what_is_asked_for_alone(scene: Scene, prepare: Prepare) -> None:
    """The other rows are nobody's concern."""
    given = {key: values[:1] for key, values in prepare(scene).items()}
    assert execute(scene.connection, prepare, given) == 1


# -- in one order --------------------------------------------------------------------------------

ORDER: list[tuple[Prepare, str, str]] = [
    (extend_leases, "job", "id"),
    (begin_effects, "job", "id"),
    (reopen_effects, "job", "id"),
    (settle_attempts, "job", "id"),
    (lock_jobs, "job", "id"),
    (lock_held_jobs, "job", "id"),
    (lock_ended_jobs, "ended_job", "id"),
    (reopen_effects, "effect", "effect_key"),
    (settle_attempts, "effect", "effect_key"),
    (resolve_effects, "effect", "effect_key"),
    (retry_jobs, "effect", "effect_key"),
    (prune_ended_jobs, "effect", "effect_key"),
]


@pytest.mark.parametrize(("prepare", "table", "column"), ORDER, ids=name_of)
def test_rows_are_locked_lowest_first(
    scene: Scene, prepare: Prepare, table: str, column: str
) -> None:
    """Whatever the order in which they are asked for: so no two statements wait for each other."""
    given = prepare(scene)
    low, middle, high = (
        row[0] for row in scene.sql(f"SELECT {column} FROM outbox.{table} ORDER BY {column}")
    )
    one = f"SELECT 1 FROM outbox.{table} WHERE {column} = %s FOR UPDATE"
    with scene.lock(one, middle) as other, running(scene, prepare, given) as work:
        scene.wait_for_blocked(1)
        assert scene.sql(f"{one} NOWAIT", high) == [(1,)]
        with pytest.raises(LockNotAvailable):
            scene.sql(f"{one} NOWAIT", low)
        other.rollback()
        work.result(10)


@pytest.mark.parametrize(
    "prepare",
    [begin_effects, *(prepare for prepare, _, column in ORDER if column == "effect_key")],
    ids=name_of,
)
def test_keys_have_one_order_in_every_database(scene: Scene, prepare: Prepare) -> None:
    """That of the tables: by a database's own collation one statement would lock B before a, and
    another a before B.
    """
    name, given = prepare.__name__, prepare(scene)
    query = f"EXPLAIN (VERBOSE) {statements.psycopg(name)}"
    given = {key: given[key] for key in statements.parameters(name)}
    lines = [row[0] for row in scene.connection.execute(query.encode(), given)]
    keys = [key for line in lines if "Sort Key:" in line for key in line.split(", ")]
    sorted_by = [key for key in keys if "effect_key" in key]
    assert all('COLLATE "C"' in key for key in sorted_by), sorted_by
    assert sorted_by or prepare in (resolve_effects, retry_jobs)  # these follow the index


def test_new_keys_are_written_lowest_first(scene: Scene) -> None:
    """Two who begin the same new keys wait for one another's inserts; in one order, never both."""
    given = begin_effects(scene)
    insert = (
        "INSERT INTO outbox.effect (effect_key, job_id, claim_version, attempted_by, topic,"
        " payload_fingerprint, provider, account, wire_key, requests_sent, first_attempt_at,"
        " last_attempt_at) SELECT %s, 0, 0, 'o', 't', sha256(''), 'p', 'a', 'w', 1, now(), now()"
    )
    with scene.lock(insert, "b") as other, running(scene, begin_effects, given) as work:
        scene.wait_for_blocked(1)
        scene.sql(NO_PATIENCE)
        with scene.connection.transaction(force_rollback=True):
            scene.sql(insert, "c")
        with pytest.raises(LockNotAvailable):
            scene.sql(insert, "a")
        other.rollback()
        work.result(10)


@pytest.mark.parametrize("prepare", [claim_jobs, claim_crashed_job], ids=name_of)
def test_a_claim_locks_no_more_than_it_takes(scene: Scene, prepare: Prepare) -> None:
    """While one is being written, others find the rest."""
    given = prepare(scene) | ({"limit": 1} if prepare is claim_jobs else {})
    with psycopg.connect(scene.url) as other:
        assert execute(other, prepare, given) == 1
        scene.sql(NO_PATIENCE)
        assert execute(scene.connection, prepare, given) == 1


# -- alone ---------------------------------------------------------------------------------------


def test_one_consumer_at_a_time_lets_lines_go_on(scene: Scene) -> None:
    """The others neither wait nor fail: they have nothing to do."""
    scene.enqueue("k", ordering_key="line")
    release = statements.psycopg("release_ordered_jobs")
    with scene.lock(release.replace("%(limit)b", "9")):
        scene.sql(NO_PATIENCE)
        assert scene.run("release_ordered_jobs", limit=9) == []
