"""What a job costs the database, in counts: they are the same on any machine, clocks are not."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import cycle
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import class_row

from benchmarks import jobs
from benchmarks.counting import Traffic, counted
from benchmarks.noop import NoOp
from outbox import Outbox, statements
from outbox.consumer import Consumer
from outbox.job import EffectState, Job
from outbox.outcome import JobAction, Outcome
from outbox.settings import OutboxSettings
from outbox.settle import Settlement, as_json

if TYPE_CHECKING:
    from tests.databases import Databases

JOBS = 1000
BATCH = 50
REQUEST_BYTES = 3000
Plan = dict[str, Any]


def enqueue(connection: psycopg.Connection, count: int) -> None:
    """As an application does, so that the table's pages are as full as enqueue makes them."""
    with connection.transaction():
        for number in range(count):
            Outbox().enqueue(connection, jobs.TOPIC, {"n": number}, effect_key=f"job-{number}")


async def drain(url: str, concurrency: int = BATCH) -> Traffic:
    """Let one consumer with default settings work off all jobs, and count what it sends."""
    gateway = NoOp(REQUEST_BYTES)
    settings = OutboxSettings.load(_env_file=None)
    with counted() as traffic:
        consumer = Consumer(url, gateway, settings, concurrency=concurrency)
        assert await consumer.run(drain=True, timeout_seconds=60) == 0
    assert gateway.calls == JOBS
    return traffic


# -- statements ----------------------------------------------------------------------------------


async def test_fifty_at_a_time_a_job_costs_a_fifth_of_a_statement(
    connection: psycopg.Connection, database_url: str
) -> None:
    """Claim, begin and settle share their statements: 0.2 a job, and as few round trips."""
    enqueue(connection, JOBS)
    traffic = await drain(database_url)
    assert traffic.statements.total() / JOBS <= 0.2, traffic.statements
    assert traffic.round_trips / JOBS <= 0.2, traffic.statements


# -- rows ----------------------------------------------------------------------------------------

_HOT = """
SELECT n_tup_upd AS updates, n_tup_hot_upd AS hot FROM pg_stat_user_tables
WHERE relid = 'outbox.job'::regclass
"""
#: Every kind of end, as they may meet in one batch.
OUTCOMES = (
    Outcome(
        JobAction.DONE, effect_state=EffectState.DELIVERED, requests_seen=1, nothing_open=True,
        message_id="m", reason="r", detail="d",
    ),
    Outcome(
        JobAction.RETRY, effect_state=EffectState.OPEN, requests_seen=1, reason="r",
        delay_seconds=1.0,
    ),
    Outcome(JobAction.HOLD, effect_state=EffectState.HELD, requests_seen=1, reason="r"),
    Outcome(
        JobAction.DEAD, effect_state=EffectState.REJECTED, requests_seen=1, nothing_open=True,
        reason="r",
    ),
    Outcome(JobAction.DUPLICATE, reason="r"),
)  # fmt: skip
CLAIM = {
    "topics": [jobs.TOPIC],
    "priorities": [0],
    "floors": [0],
    "limit": BATCH,
    "claimed_by": "test",
    "lease_seconds": 60.0,
}


def test_claims_are_heap_only_updates(connection: psycopg.Connection) -> None:
    """A claim finds room beside the row, and writes no index."""
    enqueue(connection, JOBS)
    query = statements.psycopg("claim_jobs").encode()
    for _ in range(JOBS // BATCH):
        assert len(connection.execute(query, CLAIM).fetchall()) == BATCH
    updates, hot = counts_of(connection, _HOT)
    assert updates == JOBS
    assert hot / updates >= 0.8


def counts_of(connection: psycopg.Connection, query: str) -> tuple[int, ...]:
    """A row of statistics, this session's latest included."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row


# -- buffers and plans ---------------------------------------------------------------------------

MANY = 100_000
#: More than this no hot statement may read for a job of its batch, whatever the tables hold: a
#: probe of an index is four buffers or so, and a row some more to be written.
BUFFERS_PER_JOB_MAX = 60
#: All that a consumer runs while it works, and what an enqueue runs.
HOT = (
    "begin_effects", "claim_crashed_job", "claim_jobs", "extend_leases", "find_crashed_job",
    "find_pending_job", "insert_job", "list_lanes", "promote_due_jobs", "read_effects",
    "release_held_jobs", "release_ordered_jobs", "reopen_effects", "settle_attempts",
)  # fmt: skip
#: Of these, those that work on a batch of jobs.
BATCHED = (
    "begin_effects", "claim_jobs", "extend_leases", "read_effects", "reopen_effects",
    "settle_attempts",
)  # fmt: skip


def test_a_claim_steps_over_dead_entries_once(
    connection: psycopg.Connection, database_url: str
) -> None:
    """Behind 100,000 jobs that are gone, but not for a snapshot that is held, a claim that starts
    at its floor reads no more than it would of a short queue.
    """
    jobs.fill(connection, MANY)
    with psycopg.connect(database_url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM outbox.job")
        connection.execute("DELETE FROM outbox.job")
        jobs.fill(connection, 10 * BATCH, prefix="live-")
        row = connection.execute("SELECT min(position) FROM outbox.job").fetchone()
        assert row is not None
        prepare(connection, "claim_jobs")
        plan = explained(connection, "claim_jobs", CLAIM | {"floors": [row[0]]})
    assert buffers(plan) <= BUFFERS_PER_JOB_MAX * BATCH


@pytest.fixture(scope="module", params=["knows the tables", "knows nothing"])
def large_database_url(databases: Databases, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with 100,000 jobs ready and as many effects, of which the planner knows this."""
    url = databases.create_migrated()
    with psycopg.connect(url, autocommit=True) as connection:
        nobody_analyzes(connection)
        fill(connection)
        if request.param == "knows the tables":
            connection.execute("ANALYZE outbox.job, outbox.effect")
    yield url
    databases.drop(url)


def nobody_analyzes(connection: psycopg.Connection) -> None:
    """Leave the tables to the test's own ANALYZE and VACUUM."""
    for table in ("job", "effect", "ended_job"):
        connection.execute(f"ALTER TABLE outbox.{table} SET (autovacuum_enabled = off)".encode())


def fill(connection: psycopg.Connection) -> None:
    """Many jobs, and many effects that were delivered before."""
    jobs.fill(connection, MANY)
    jobs.remember(connection, MANY)


@pytest.fixture
def large(large_database_url: str) -> Iterator[psycopg.Connection]:
    """A connection to it; what it writes is undone."""
    with psycopg.connect(large_database_url) as connection:
        yield connection
        connection.rollback()


@pytest.mark.parametrize(
    ("name", "mode"),
    [(name, mode) for name in HOT for mode in ("force_custom_plan", "force_generic_plan")],
)
def test_no_hot_statement_reads_all_of_a_table(
    large: psycopg.Connection, name: str, mode: str
) -> None:
    """Of 100,000 jobs and as many effects: by index, no sort of the table, a bounded reading."""
    given = parameters(large, name)
    large.execute(f"SET LOCAL plan_cache_mode = {mode}".encode())
    prepare(large, name)
    assert_bounded(explained(large, name, given))


@pytest.mark.parametrize("state", ["never used", "vacuumed", "after some use"])
def test_a_plan_made_while_the_queue_was_empty_serves_a_full_one(
    databases: Databases, state: str
) -> None:
    """A consumer at rest has planned its statements for empty tables, and keeps these plans: a
    burst that comes then is worked off by index all the same.
    """
    url = databases.create_migrated()
    with psycopg.connect(url, autocommit=True) as connection:
        nobody_analyzes(connection)
        if state == "after some use":
            jobs.fill(connection, BATCH)
            jobs.remember(connection, BATCH)
            connection.execute("DELETE FROM outbox.job")
        if state != "never used":
            connection.execute("VACUUM (ANALYZE) outbox.job, outbox.effect")
        plan_now(connection, HOT)
        connection.execute("DELETE FROM outbox.effect")
        fill(connection)
        for name in HOT:
            with connection.transaction(force_rollback=True):
                assert_bounded(explained(connection, name, parameters(connection, name)))
    databases.drop(url)


@pytest.mark.parametrize("known_effects", [0, 1, 20 * BATCH])
@pytest.mark.parametrize("known_jobs", [0, 1, BATCH, 20 * BATCH])
def test_a_batch_costs_in_proportion_whatever_the_planner_believes(
    connection: psycopg.Connection, known_jobs: int, known_effects: int
) -> None:
    """What was in the tables at the last ANALYZE decides a plan; none of them compares each job of
    a batch with each other one, but for retries while the ledger is believed to hold one row.
    """
    nobody_analyzes(connection)
    jobs.fill(connection, known_jobs)
    jobs.remember(connection, known_effects)
    connection.execute("ANALYZE outbox.job, outbox.effect")
    plan_now(connection, BATCHED)
    connection.execute("DELETE FROM outbox.job")
    connection.execute("DELETE FROM outbox.effect")
    jobs.fill(connection, 2 * BATCH)
    for name in BATCHED:
        with connection.transaction(force_rollback=True):
            plan = explained(connection, name, parameters(connection, name))
        compares = name == "reopen_effects" and known_effects == 1
        assert rows_seen_at_most(plan) <= (BATCH**2 if compares else 10 * BATCH), name


@pytest.mark.parametrize("known", [0, 1, 20 * BATCH])
def test_many_that_are_due_or_old_cost_in_proportion(
    connection: psycopg.Connection, known: int
) -> None:
    """The same of what goes by the thousand: jobs whose time has come, payloads to be forgotten."""
    nobody_analyzes(connection)
    late_and_old(connection, known)
    names = ("promote_due_jobs", "prune_ended_jobs")
    connection.execute("ANALYZE outbox.job, outbox.effect, outbox.ended_job")
    plan_now(connection, names)
    many = 20 * BATCH
    late_and_old(connection, many)
    given = {
        "ended_as": "dead", "after_ended_at": "-infinity", "after_id": 0, "days": 1.0,
        "limit": many,
    }  # fmt: skip
    for name in names:
        needed = {key: given[key] for key in statements.parameters(name)}
        plan = explained(connection, name, needed)
        assert rows_seen_at_most(plan) <= 10 * many, name
    left = "SELECT count(*) FROM outbox.job WHERE position IS NULL"
    assert counts_of(connection, left) == (0,)
    left = "SELECT count(*) FROM outbox.effect WHERE request IS NOT NULL"
    assert counts_of(connection, left) == (0,)


def late_and_old(connection: psycopg.Connection, count: int) -> None:
    """So many jobs that are due, and as many that ended nine days ago with a request left frozen;
    nothing else.
    """
    for table in ("job", "ended_job", "effect"):
        connection.execute(f"DELETE FROM outbox.{table}".encode())
    jobs.fill(connection, count)
    connection.execute(
        "UPDATE outbox.job SET waiting = 'backoff', position = NULL, available_at = now()"
    )
    jobs.remember(connection, count)
    connection.execute(
        "UPDATE outbox.effect SET state = 'open', settled_at = NULL, request = 'x',"
        " open_since = NULL"
    )
    connection.execute(
        "INSERT INTO outbox.ended_job (id, topic, priority, effect_key, payload,"
        " payload_fingerprint, enqueued_at, attempts, claim_version, ended_as, reason, ended_at)"
        " SELECT job_id, topic, 0, effect_key, '{}', payload_fingerprint, now(), 1, 1, 'dead', 'r',"
        " now() - interval '9 days' FROM outbox.effect"
    )


def plan_now(connection: psycopg.Connection, names: Iterable[str]) -> None:
    """Plan statements for what is believed of the tables by now, for good."""
    connection.execute("SET plan_cache_mode = force_generic_plan")
    for name in names:
        prepare(connection, name)
        explained(connection, name, dict.fromkeys(statements.parameters(name)), run=False)


def assert_bounded(plan: Plan) -> None:
    """By index, no sort of the table, and no more read than its jobs account for."""
    for node in nodes(plan):
        what = node["Node Type"], node.get("Relation Name")
        assert not (what[0] == "Seq Scan" and what[1] in {"job", "effect"}), what
        assert not (what[0] == "Sort" and node["Actual Rows"] > 10 * BATCH), what
    assert buffers(plan) <= BUFFERS_PER_JOB_MAX * BATCH


def parameters(connection: psycopg.Connection, name: str) -> dict[str, object]:
    """What a consumer, or an enqueue, gives a hot statement."""
    given: dict[str, object]
    if name == "claim_jobs":
        given = CLAIM
    elif name == "insert_job":
        given = dict.fromkeys(statements.parameters(name)) | {
            "topic": jobs.TOPIC, "priority": 0, "effect_key": "new", "payload": "{}",
            "payload_fingerprint": hashlib.sha256(b"{}").digest(), "notify": True,
        }  # fmt: skip
    else:
        given = batch(connection) | {"limit": 1000, "topics": [jobs.TOPIC], "priorities": [0]}
    if name in {"read_effects", "reopen_effects", "settle_attempts"}:
        begin = {key: given[key] for key in statements.parameters("begin_effects")}
        connection.execute(statements.psycopg("begin_effects").encode(), begin)
    return {key: given[key] for key in statements.parameters(name)}


def batch(connection: psycopg.Connection) -> dict[str, object]:
    """Claim the first fifty jobs, and give all that may be asked about them."""
    with connection.cursor(row_factory=class_row(Job)) as cursor:
        claimed = cursor.execute(statements.psycopg("claim_jobs").encode(), CLAIM).fetchall()
    assert len(claimed) == BATCH
    keys = [job.effect_key for job in claimed]
    each: dict[str, object] = {
        "claim_versions": 1, "requests": b"x" * REQUEST_BYTES, "request_hashes": b"h" * 32,
        "requests_seen": 1,
    }  # fmt: skip
    return {
        **{name: [value] * BATCH for name, value in each.items()},
        "job_ids": [job.id for job in claimed],
        "wire_keys": keys, "effect_keys": keys,
        "outcomes": as_json(list(map(Settlement, claimed, cycle(OUTCOMES)))),
        "claimed_by": "test", "provider": "p", "account": "a", "lease_seconds": 60.0,
    }  # fmt: skip


def prepare(connection: psycopg.Connection, name: str) -> None:
    """Prepare a statement under its name."""
    order = sorted(statements.parameters(name))
    numbered = re.sub(
        r"(?<![:\w]):([a-z_]+)\b",
        lambda found: f"${order.index(found[1]) + 1}",
        statements.text(name),
    )
    connection.execute(f"PREPARE {name} AS {numbered}".encode())


def explained(
    connection: psycopg.Connection, name: str, given: dict[str, object], *, run: bool = True
) -> Plan:
    """The plan of a prepared statement, and, where it is run, what that did."""
    order = sorted(given)
    marks = ", ".join(["%s"] * len(order))
    arguments = f"({marks})" if order else ""
    options = "ANALYZE, BUFFERS, " if run else ""
    with psycopg.ClientCursor(connection) as cursor:
        cursor.execute(
            f"EXPLAIN ({options}FORMAT JSON) EXECUTE {name} {arguments}".encode(),
            [given[parameter] for parameter in order],
        )
        row = cursor.fetchone()
    assert row is not None
    plan: Plan = row[0][0]["Plan"]
    return plan


def nodes(plan: Plan) -> Iterator[Plan]:
    """A plan's node and all below it."""
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def rows_seen_at_most(plan: Plan) -> int:
    """How many rows a node of it has made or thrown away, all its loops together."""
    return max(
        int(node["Actual Loops"] * (node["Actual Rows"] + sum(thrown_away(node))))
        for node in nodes(plan)
    )


def thrown_away(node: Plan) -> Iterator[float]:
    """The rows a loop that a node has read in vain, by its reasons."""
    return (number for name, number in node.items() if name.startswith("Rows Removed by"))


def buffers(plan: Plan) -> int:
    """How many buffers it touched."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
