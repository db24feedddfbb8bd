"""The schema: applied step by step, verified, and never half."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from outbox import ConfigurationError, DatabaseUnavailable, Outbox, SchemaError, schema
from outbox.schema import Migration, check, check_url, migrate, migrations
from tests.producers import TOPIC, sqlalchemy_url
from tests.waiting import eventually

TURN = "hashtextextended('outbox.migrate', 0)"


@pytest.fixture
def database(empty_database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """An autocommit connection to an empty database."""
    with psycopg.connect(empty_database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def with_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Migration, ...]]:
    """Makes this code know further steps than it ships."""

    def know(*queries: str) -> tuple[Migration, ...]:
        shipped = migrations()
        further = tuple(
            Migration(len(shipped) + number, f"further_{number}", query)
            for number, query in enumerate(queries, 1)
        )
        monkeypatch.setattr(schema, "migrations", lambda: shipped + further)
        return further

    return know


def versions(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    """What the database says has been applied."""
    query = "SELECT version, name, checksum FROM outbox.schema_version ORDER BY version"
    return connection.execute(query).fetchall()


def exists(connection: psycopg.Connection[Any], relation: str) -> bool:
    """Whether there is such a table, view or sequence."""
    row = connection.execute("SELECT to_regclass(%s) IS NOT NULL", [relation]).fetchone()
    return row == (True,)


def defaults(connection: psycopg.Connection[Any], **settings: str) -> None:
    """Set what all later sessions of this database begin with, as a role's settings do."""
    for name, value in settings.items():
        query = (
            f"ALTER ROLE CURRENT_USER IN DATABASE {connection.info.dbname} SET {name} = '{value}'"
        )
        connection.execute(query.encode())


@contextmanager
def in_background(function: Callable[[], Any]) -> Iterator[Future[Any]]:
    """A call in a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(function)


def test_the_shipped_steps_are_numbered_without_gaps() -> None:
    """A gap would be a step that somebody forgot to ship."""
    assert [step.version for step in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_fresh_database_gets_every_step(
    empty_database_url: str, database: psycopg.Connection[Any]
) -> None:
    """What was applied is returned, written down with its checksum, and verified."""
    assert migrate(empty_database_url) == list(migrations())
    assert versions(database) == [(s.version, s.name, s.checksum) for s in migrations()]
    check(database)
    check_url(empty_database_url)


def test_a_second_time_there_is_nothing_to_do(
    empty_database_url: str, database: psycopg.Connection[Any]
) -> None:
    """It takes no lock that could wait for anybody, not even for a writer of the whole table."""
    migrate(empty_database_url)
    before = versions(database)
    with psycopg.connect(empty_database_url) as other:
        other.execute("LOCK TABLE outbox.job, outbox.effect IN ACCESS EXCLUSIVE MODE")
        assert migrate(empty_database_url) == []
    assert versions(database) == before


def test_a_url_in_the_way_of_sqlalchemy_is_understood(empty_database_url: str) -> None:
    """The driver in it is left out."""
    assert migrate(sqlalchemy_url(empty_database_url, "psycopg2")) == list(migrations())
    check_url(sqlalchemy_url(empty_database_url, "asyncpg"))


def test_jobs_survive_a_further_step(
    database_url: str, connection: psycopg.Connection[Any], with_steps: Any
) -> None:
    """A step is applied to a database in use, and each only once."""
    with connection.transaction():
        Outbox().enqueue(connection, TOPIC, {}, effect_key="k")
    further = with_steps("ALTER TABLE outbox.job ADD COLUMN extra integer")
    with pytest.raises(SchemaError, match=r"older than this code; run: outbox migrate"):
        check_url(database_url)
    assert migrate(database_url) == list(further)
    assert migrate(database_url) == []
    assert connection.execute("SELECT effect_key, extra FROM outbox.job").fetchall() == [
        ("k", None)
    ]


def waiting_for_turn(connection: psycopg.Connection[Any], seconds: float) -> int:
    """How many have waited for another migrate for so long."""
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND wait_event_type = 'Lock' AND wait_event = 'advisory'"
        " AND clock_timestamp() - query_start >= %s * interval '1 second'",
        [seconds],
    ).fetchone()
    return row[0] if row else 0


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"default_transaction_isolation": "repeatable read"},
        {"default_transaction_isolation": "serializable", "default_transaction_read_only": "on"},
        {"lock_timeout": "10ms", "statement_timeout": "500ms"},
    ],
    ids=str,
)
def test_of_two_at_once_one_waits_and_finds_nothing_to_do(
    empty_database_url: str, database: psycopg.Connection[Any], settings: dict[str, str]
) -> None:
    """Whatever the role's settings are, each step is applied once and nobody fails."""
    defaults(database, **settings)
    with psycopg.connect(empty_database_url) as first:
        first.execute("SET lock_timeout = 0; SET statement_timeout = 0")
        first.rollback()
        first.execute("SET TRANSACTION READ WRITE")
        first.execute(f"SELECT pg_advisory_xact_lock({TURN})".encode())
        with (
            in_background(lambda: migrate(empty_database_url)) as second,
            in_background(lambda: migrate(empty_database_url)) as third,
        ):
            eventually(lambda: waiting_for_turn(database, seconds=0.6) == 2)
            assert not second.done()
            assert not third.done()
            first.rollback()
            assert sorted([second.result(30), third.result(30)], key=len) == [
                [],
                list(migrations()),
            ]
    assert len(versions(database)) == len(migrations())


def test_many_at_once_on_a_fresh_database_all_succeed(
    empty_database_url: str, database: psycopg.Connection[Any]
) -> None:
    """Every consumer of a first deployment may migrate at its start."""
    barrier = threading.Barrier(6)

    def one() -> list[Migration]:
        barrier.wait()
        return migrate(empty_database_url)

    with ThreadPoolExecutor(6) as pool:
        done = [future.result(60) for future in [pool.submit(one) for _ in range(6)]]
    assert sorted(len(steps) for steps in done) == [0] * 5 + [len(migrations())]


class Enqueuer:
    """A business application that goes on enqueueing, and notes how long each one took."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._enough = threading.Event()
        self.slowest_seconds = 0.0
        self.enqueued = 0

    def run(self) -> None:
        """Enqueue until stopped."""
        with psycopg.connect(self._url) as connection:
            while not self._enough.wait(0.02):
                started = time.monotonic()
                Outbox().enqueue(connection, TOPIC, {}, effect_key="k")
                connection.commit()
                self.slowest_seconds = max(self.slowest_seconds, time.monotonic() - started)
                self.enqueued += 1

    def stop(self) -> None:
        """Let the current one be the last."""
        self._enough.set()


def test_behind_a_long_reader_it_gives_up_soon_and_changes_nothing(
    database_url: str, connection: psycopg.Connection[Any], with_steps: Any
) -> None:
    """Producers, who wait behind it, wait no longer than that either (case-56)."""
    further = with_steps(
        "CREATE TABLE outbox.first_half (id integer);"
        "ALTER TABLE outbox.job ADD COLUMN second_half integer"
    )
    enqueuer = Enqueuer(database_url)
    with psycopg.connect(database_url) as reader, in_background(enqueuer.run) as running:
        reader.execute("SELECT count(*) FROM outbox.job")
        eventually(lambda: enqueuer.enqueued > 2)
        started = time.monotonic()
        with pytest.raises(SchemaError) as refusal:
            migrate(database_url)
        assert time.monotonic() - started < 5
        before = enqueuer.enqueued
        eventually(lambda: enqueuer.enqueued > before + 2)
        enqueuer.stop()
        running.result(10)
    assert enqueuer.slowest_seconds < 6
    assert str(refusal.value) == (
        "migration 2 gave up after 3 s: another session holds a lock on the outbox tables "
        "(a long reader, a dump?); nothing was changed, run it again later"
    )
    assert not exists(connection, "outbox.first_half")
    assert len(versions(connection)) == len(migrations())
    assert migrate(database_url) == list(further)


def test_a_step_that_fails_leaves_nothing_of_itself_but_all_before_it(
    database_url: str, connection: psycopg.Connection[Any], with_steps: Any
) -> None:
    """Each step is whole or not there; the error is one line."""
    good, _, _ = with_steps(
        "CREATE TABLE outbox.good (id integer)",
        "CREATE TABLE outbox.half (id integer); ALTER TABLE outbox.nowhere ADD COLUMN x integer",
        "CREATE TABLE outbox.never (id integer)",
    )
    with pytest.raises(SchemaError) as refusal:
        migrate(database_url)
    assert str(refusal.value) == 'the database refused: relation "outbox.nowhere" does not exist'
    assert exists(connection, "outbox.good")
    assert not exists(connection, "outbox.half")
    assert not exists(connection, "outbox.never")
    assert [row[1] for row in versions(connection)] == [migrations()[0].name, good.name]


def test_a_newer_schema_is_refused_and_left_alone(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """An old program must not touch what a newer one has made."""
    connection.execute("INSERT INTO outbox.schema_version VALUES (900, 'later', 'x')")
    for refused in (migrate, check_url):
        with pytest.raises(SchemaError) as refusal:
            refused(database_url)
        assert str(refusal.value) == (
            f"the outbox schema has version 900, this code knows up to {len(migrations())}: "
            "update this program before it touches the database"
        )


def test_a_step_that_was_applied_in_another_form_is_refused(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """Somebody has edited a file that had been released, or run a development version."""
    connection.execute("UPDATE outbox.schema_version SET checksum = 'x' WHERE version = 1")
    for refused in (migrate, check_url):
        with pytest.raises(SchemaError, match="migration 1 was applied in another form than this"):
            refused(database_url)


def test_a_database_without_the_schema_names_the_command(empty_database_url: str) -> None:
    """Nothing is created by looking."""
    with pytest.raises(SchemaError, match="run: outbox migrate"):
        check_url(empty_database_url)
    with psycopg.connect(empty_database_url) as connection:
        assert not exists(connection, "outbox.schema_version")


def indexes(connection: psycopg.Connection[Any]) -> set[str]:
    """The indexes that the steps have made, but for that of the versions themselves."""
    rows = connection.execute("SELECT indexname FROM pg_indexes WHERE schemaname = 'outbox'")
    return {name for (name,) in rows.fetchall()} - {"schema_version_pkey"}


def test_every_index_that_is_missing_is_found(connection: psycopg.Connection[Any]) -> None:
    """One by one: a consumer would only be slow without it, and nobody would know why."""
    assert indexes(connection)
    for name in indexes(connection):
        with connection.transaction(force_rollback=True):
            # A primary key's index goes with its constraint; renamed, each is missing alike.
            connection.execute(f"ALTER INDEX outbox.{name} RENAME TO hidden".encode())
            with pytest.raises(SchemaError, match=f"index outbox.{name} is missing or invalid"):
                check(connection)
    check(connection)


def test_every_table_view_and_sequence_that_is_missing_is_found(
    connection: psycopg.Connection[Any],
) -> None:
    """One by one, with its name."""
    rows = connection.execute(
        "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"
        " AND relkind IN ('r', 'v', 'S') AND relname <> 'schema_version'"
    ).fetchall()
    assert len(rows) >= 6
    kinds = {"r": "TABLE", "v": "VIEW", "S": "SEQUENCE"}
    for name, kind in rows:
        with connection.transaction(force_rollback=True):
            connection.execute(f"DROP {kinds[kind]} outbox.{name} CASCADE".encode())
            with pytest.raises(SchemaError, match=f"outbox.{name} is missing"):
                check(connection)
    check(connection)


def test_an_index_that_is_invalid_is_found(connection: psycopg.Connection[Any]) -> None:
    """As a CREATE INDEX CONCURRENTLY leaves it that was broken off."""
    with connection.transaction():
        for _ in range(2):
            Outbox().enqueue(connection, TOPIC, {}, effect_key="k")
    connection.execute("DROP INDEX outbox.job_due")
    with pytest.raises(psycopg.errors.UniqueViolation):
        connection.execute("CREATE UNIQUE INDEX CONCURRENTLY job_due ON outbox.job (topic)")
    with pytest.raises(SchemaError, match=r"index outbox\.job_due is missing or invalid"):
        check(connection)


def test_an_index_that_is_no_longer_unique_is_found(connection: psycopg.Connection[Any]) -> None:
    """Never two heads of one ordering key: that hangs on the index."""
    connection.execute("DROP INDEX outbox.job_ordering_head")
    connection.execute("CREATE INDEX job_ordering_head ON outbox.job (ordering_key)")
    with pytest.raises(SchemaError, match=r"outbox\.job_ordering_head is missing or invalid"):
        check(connection)


@pytest.fixture
def limited_role(database: psycopg.Connection[Any]) -> Iterator[str]:
    """A role that may do nothing in this database but what it owns."""
    role = f"outbox_test_limited_{secrets.token_hex(4)}"
    database.execute(f"CREATE ROLE {role}".encode())
    yield role
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def as_role(url: str, role: str) -> str:
    """The same URL for sessions that act as another role."""
    return f"{url}{'&' if '?' in url else '?'}options=-c%20role%3D{role}"


def test_a_role_without_rights_is_told_so_in_one_line(
    empty_database_url: str, limited_role: str
) -> None:
    """The database's own words, which name the right that is missing."""
    with pytest.raises(SchemaError, match="the database refused: permission denied for database"):
        migrate(as_role(empty_database_url, limited_role))


def test_a_schema_that_somebody_else_has_made_is_enough(
    empty_database_url: str, database: psycopg.Connection[Any], limited_role: str
) -> None:
    """Where the role may not create schemas, an administrator makes this one for it."""
    database.execute(f"CREATE SCHEMA outbox AUTHORIZATION {limited_role}".encode())
    assert migrate(as_role(empty_database_url, limited_role)) == list(migrations())
    assert migrate(as_role(empty_database_url, limited_role)) == []


@pytest.mark.parametrize("command", [migrate, check_url])
def test_a_database_that_is_not_there_is_one_line_without_the_password(
    command: Callable[[str], object],
) -> None:
    """Nobody listens on that port."""
    with pytest.raises(DatabaseUnavailable) as refusal:
        command("postgresql://somebody:secret@127.0.0.1:1/nowhere")
    assert str(refusal.value).startswith("can't connect to the database: ")
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("command", [migrate, check_url])
@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/d", "secret", "", "postgresql://u:secret@[::1/d"]
)
def test_a_wrong_url_is_refused_without_repeating_it(
    command: Callable[[str], object], url: str
) -> None:
    """It may hold a password."""
    with pytest.raises(ConfigurationError, match="OUTBOX_DATABASE_URL") as refusal:
        command(url)
    assert "secret" not in str(refusal.value)


def test_a_migrate_whose_session_is_ended_leaves_nothing_half(
    database_url: str, connection: psycopg.Connection[Any], with_steps: Any
) -> None:
    """The database is shut down, or somebody loses patience; the next one does it all."""
    further = with_steps("CREATE TABLE outbox.half (id integer); SELECT pg_sleep(60)")
    asleep = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = %s"
    with in_background(lambda: migrate(database_url)) as running:
        pid = eventually(lambda: connection.execute(asleep, [connection.info.dbname]).fetchone())[0]
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        with pytest.raises(DatabaseUnavailable, match="run it again"):
            running.result(10)
    assert not exists(connection, "outbox.half")
    with_steps("CREATE TABLE outbox.half (id integer)")
    assert [step.name for step in migrate(database_url)] == [further[0].name]


def test_the_tables_carry_their_own_settings(connection: psycopg.Connection[Any]) -> None:
    """Room for heap-only updates, and an autovacuum that keeps up."""
    rows = connection.execute(
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = 'outbox'::regnamespace"
        " AND relname IN ('job', 'effect', 'consumer')"
    ).fetchall()
    assert len(rows) == 3
    for name, options in rows:
        settings = dict(option.split("=") for option in options)
        assert int(settings["fillfactor"]) < 100, name
        assert "autovacuum_vacuum_scale_factor" in settings, name


STATES = """
INSERT INTO outbox.job
    (id, topic, position, effect_key, payload, payload_fingerprint, ordering_key, waiting,
     available_at, claimed_by, claimed_at, lease_until, attempts)
SELECT id, 't', CASE WHEN waiting IS NULL THEN id END, state, '{}', sha256(''), ordering_key,
    waiting, clock_timestamp() + due * interval '1 hour', claimed_by,
    CASE WHEN claimed_by IS NOT NULL THEN clock_timestamp() END,
    clock_timestamp() + lease * interval '1 hour', 1
FROM (VALUES
    (1, 'ready', NULL, NULL, NULL, NULL, NULL),
    (2, 'ready.due', NULL, 'schedule', -1, NULL, NULL),
    (3, 'ready.backoff-is-over', NULL, 'backoff', -1, NULL, NULL),
    (4, 'ready.crashed', NULL, NULL, NULL, 'me', -1),
    (5, 'scheduled', NULL, 'schedule', 1, NULL, NULL),
    (6, 'backing_off', NULL, 'backoff', 1, NULL, NULL),
    (7, 'running', NULL, NULL, NULL, 'me', 1),
    (8, 'blocked', 'k', 'order', NULL, NULL, NULL),
    (9, 'blocked.for-later', 'l', 'order', 1, NULL, NULL),
    (10, 'held', NULL, 'resolve', NULL, NULL, NULL)
) AS job (id, state, ordering_key, waiting, due, claimed_by, lease);

INSERT INTO outbox.ended_job
    (id, topic, priority, effect_key, payload_fingerprint, enqueued_at, attempts, claim_version,
     ended_as, reason)
SELECT id, 't', 0, state, sha256(''), clock_timestamp(), 1, 1, ended_as, 'because'
FROM (VALUES
    (11, 'dead', 'dead'), (12, 'cancelled', 'cancelled'), (13, 'done.duplicate', 'duplicate')
) AS ended (id, state, ended_as);

INSERT INTO outbox.effect
    (effect_key, job_id, claim_version, attempted_by, topic, payload_fingerprint, provider,
     account, wire_key, state, requests_sent, first_attempt_at, last_attempt_at, settled_at,
     open_since)
SELECT key, job_id, 1, 'me', 't', sha256(''), 'p', 'a', key, state, 1, clock_timestamp(),
    clock_timestamp(), CASE WHEN state NOT IN ('open', 'held') THEN clock_timestamp() END,
    CASE WHEN state IN ('open', 'held') THEN clock_timestamp() END
FROM (VALUES
    ('done', 14, 'delivered'), ('done.duplicate', 15, 'delivered'),
    ('held', 10, 'held'), ('dead', 11, 'rejected'), ('running', 7, 'open')
) AS effect (key, job_id, state);
"""


def test_the_view_names_the_state_of_every_job_once(connection: psycopg.Connection[Any]) -> None:
    """Ready, scheduled, backing_off, running, blocked, held, dead, cancelled, done."""
    connection.execute(STATES.encode())
    rows = connection.execute("SELECT id, effect_key, state FROM outbox.job_status").fetchall()
    assert sorted(id_ for id_, _, _ in rows) == list(range(1, 16))
    for _, key, state in rows:
        assert key.partition(".")[0] == state
