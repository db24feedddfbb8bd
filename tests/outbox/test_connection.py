"""A consumer's connection: short READ COMMITTED transactions, and back again after every fault."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from outbox import ConfigurationError, DatabaseUnavailable, Outbox, SchemaError, statements
from outbox import connection as connections
from outbox.connection import Connection, host_of, libpq_url, passing, refused_for_good
from tests.producers import TOPIC
from tests.waiting import aeventually

NAME = "outbox test consumer"


@dataclass(frozen=True, slots=True)
class Id:
    """The column of ``extend_leases``, and of what replaces a statement here."""

    id: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """What the claim statement returns."""

    id: int
    topic: str
    priority: int
    position: int
    effect_key: str
    payload: str
    payload_fingerprint: bytes
    claim_version: int
    claimed_by: str
    attempts: int
    max_attempts: int | None
    expired: bool


@pytest.fixture
async def consumer(database_url: str) -> AsyncIterator[Connection]:
    """The connection under test."""
    async with Connection(database_url, NAME) as consumer:
        yield consumer


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Makes the connection run another query in the place of each statement."""

    def instead(query: str) -> None:
        monkeypatch.setattr(statements, "psycopg", lambda _: query)

    return instead


def defaults(connection: psycopg.Connection[Any], **settings: str) -> None:
    """Set what all later sessions of this database begin with, as a role's settings do."""
    for name, value in settings.items():
        query = (
            f"ALTER ROLE CURRENT_USER IN DATABASE {connection.info.dbname} SET {name} = '{value}'"
        )
        connection.execute(query.encode())


async def pid_of(consumer: Connection) -> int:
    """The server's process behind the connection."""
    return (await consumer.raw()).info.backend_pid


async def hello(consumer: Connection) -> None:
    """The smallest of the statements."""
    await consumer.execute("forget_consumer", claimed_by="nobody")


async def claim(consumer: Connection, limit: int) -> list[Claimed]:
    """Claim whatever is ready, under the name of this connection."""
    return await consumer.fetch(
        Claimed,
        "claim_jobs",
        topics=[TOPIC],
        priorities=[0],
        floors=[0],
        limit=limit,
        claimed_by=f"consumer {id(consumer)}",
        lease_seconds=60.0,
    )


def enqueue(url: str, count: int) -> list[int]:
    """So many jobs, and their ids."""
    with psycopg.connect(url) as connection:
        return [
            Outbox().enqueue(connection, TOPIC, {}, effect_key=f"e-{number}")
            for number in range(count)
        ]


# -- URLs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("postgresql://u:p@h:5433/d", "postgresql://u:p@h:5433/d"),
        ("postgres://h/d", "postgresql://h/d"),
        ("postgresql+psycopg://h/d", "postgresql://h/d"),
        ("postgresql+psycopg2://h/d", "postgresql://h/d"),
        ("postgresql+asyncpg://u@/d?host=/run/postgresql", "postgresql://u@/d?host=/run/postgresql"),
        ("  postgresql://h/d\n", "postgresql://h/d"),
        ("postgresql://u:p%40%2F%3A@h/d", "postgresql://u:p%40%2F%3A@h/d"),
        ("postgresql://h1:1,h2:2/d?target_session_attrs=primary",
         "postgresql://h1:1,h2:2/d?target_session_attrs=primary"),
        ("postgresql:///d", "postgresql:///d"),
    ],
)  # fmt: skip
def test_a_url_is_read_as_libpq_or_sqlalchemy_means_it(url: str, plain: str) -> None:
    """The driver's name is for SQLAlchemy alone."""
    assert libpq_url(url) == plain


@pytest.mark.parametrize(
    "url",
    [
        "",
        "secret",
        "host=h password=secret",
        "mysql://u:secret@h/d",
        "http://u:secret@h/d",
        "postgresql:secret@h/d",
        "postgresql://u:secret@[::1/d",
        "postgresql://u:sec%ret@h/d",
        "postgresql://u:secret@h/d?no_such_option=1",
    ],
)
def test_another_url_is_refused_without_repeating_it(url: str) -> None:
    """The remedy is named, the password is not."""
    with pytest.raises(ConfigurationError, match="OUTBOX_DATABASE_URL: ") as refusal:
        libpq_url(url)
    assert "ret@" not in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://user:secret@db.example:5433/shop", "db.example:5433/shop"),
        ("postgresql+asyncpg://user:secret@db.example/shop", "db.example/shop"),
        ("postgresql://user:secret@/shop?host=/run/postgresql", "/run/postgresql/shop"),
        ("postgresql:///shop", "local socket/shop"),
        ("postgresql://user:secret@h/d?password=secret2", "h/d"),
    ],
)
def test_a_start_line_says_where_and_not_who(url: str, place: str) -> None:
    """Host, port and database; no user, no password."""
    assert host_of(url) == place


# -- errors --------------------------------------------------------------------------------------

MOMENT = {
    "08000": "connection_exception",
    "08003": "connection_does_not_exist",
    "08006": "connection_failure",
    "08P01": "protocol_violation, as a pooler says it",
    "25006": "read_only_sql_transaction: the server became a standby",
    "25P03": "idle_in_transaction_session_timeout",
    "25P04": "transaction_timeout",
    "26000": "invalid_sql_statement_name: prepared, behind a pooler",
    "40001": "serialization_failure",
    "40P01": "deadlock_detected",
    "42P05": "duplicate_prepared_statement: behind a pooler",
    "53100": "disk_full",
    "53200": "out_of_memory",
    "53300": "too_many_connections",
    "55P03": "lock_not_available",
    "57014": "query_canceled",
    "57P01": "admin_shutdown",
    "57P02": "crash_shutdown",
    "57P03": "cannot_connect_now",
    "57P05": "idle_session_timeout",
    "58000": "system_error",
    "58030": "io_error",
}
STATEMENT = {
    "22003": "numeric_value_out_of_range",
    "22021": "character_not_in_repertoire",
    "22P02": "invalid_text_representation",
    "22P05": "untranslatable_character",
    "23502": "not_null_violation",
    "23505": "unique_violation",
    "23514": "check_violation",
    "42501": "insufficient_privilege",
    "42601": "syntax_error",
    "42703": "undefined_column",
    "42883": "undefined_function",
    "54000": "program_limit_exceeded",
    "P0001": "raise_exception",
    "XX001": "data_corrupted",
}


def error_of(sqlstate: str, text: str = "") -> psycopg.Error:
    """An error as the server would send it."""
    error = psycopg.DatabaseError(text)
    error.sqlstate = sqlstate
    return error


@pytest.mark.parametrize("sqlstate", MOMENT, ids=lambda code: f"{code} {MOMENT[code][:30]}")
def test_an_error_of_the_moment_is_waited_out(sqlstate: str) -> None:
    """The same statement may pass later, so nothing is spent and nobody dies."""
    assert passing(error_of(sqlstate))


@pytest.mark.parametrize("sqlstate", STATEMENT, ids=lambda code: f"{code} {STATEMENT[code][:30]}")
def test_an_error_of_the_statement_is_not_repeated_for_ever(sqlstate: str) -> None:
    """It would come again: whoever asked is told."""
    assert not passing(error_of(sqlstate))


def test_what_is_not_supported_right_now_is_of_the_moment() -> None:
    """A migration went by (case-47), or the server is a standby since a failover."""
    assert passing(error_of("0A000", "cached plan must not change result type"))
    assert passing(error_of("0A000", "cannot set transaction read-write mode during recovery"))


@pytest.mark.parametrize(
    ("text", "lasting"),
    [
        ('FATAL:  password authentication failed for user "shop"', True),
        ('FATAL:  database "shopp" does not exist', True),
        ('FATAL:  role "shop" does not exist', True),
        ('FATAL:  role "shop" is not permitted to log in', True),
        ('FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "shop"', True),
        ('FATAL:  permission denied for database "shop"', True),
        ("FATAL:  the database system is starting up", False),
        ("FATAL:  the database system is not accepting connections", False),
        ('FATAL:  database "shop" is not currently accepting connections', False),
        ("FATAL:  sorry, too many clients already", False),
        ("FATAL:  terminating connection due to administrator command", False),
        ("FATAL:  canceling authentication due to timeout", False),
        ('FATAL:  could not write init file: No space left on device', False),
        ("connection to server failed: Connection refused", False),
    ],
)  # fmt: skip
def test_only_a_refusal_that_a_person_must_mend_is_for_good(text: str, lasting: bool) -> None:
    """A server that is closed for a while is waited for, also by a consumer that starts."""
    assert refused_for_good(psycopg.OperationalError(text)) is lasting


def test_an_error_without_a_code_is_judged_by_its_class() -> None:
    """The client's own: a lost connection is of the moment, a wrong call is not."""
    assert passing(psycopg.OperationalError("server closed the connection unexpectedly"))
    assert passing(psycopg.InterfaceError("the cursor is closed"))
    assert not passing(psycopg.ProgrammingError("the query has 1 placeholder but 0 were passed"))
    assert not passing(psycopg.DataError("PostgreSQL text fields cannot contain NUL bytes"))


# -- one statement -------------------------------------------------------------------------------


async def test_rows_come_back_as_the_class_that_was_asked_for(
    consumer: Connection, database_url: str
) -> None:
    """By the names of the columns."""
    ids = enqueue(database_url, 3)
    assert sorted(job.id for job in await claim(consumer, limit=10)) == ids


async def test_a_statement_without_rows_is_fine(
    consumer: Connection, connection: psycopg.Connection[Any]
) -> None:
    """It has no columns to read."""
    await consumer.execute(
        "note_consumer", claimed_by="me", topics=["a"], seen_seconds=60.0, sleep_seconds=None
    )
    assert connection.execute("SELECT claimed_by FROM outbox.consumer").fetchall() == [("me",)]


async def test_it_connects_at_first_use_under_its_name(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """An operator sees in pg_stat_activity who is who."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND datname = %s"
    parameters = [NAME, connection.info.dbname]
    consumer = Connection(database_url, NAME)
    assert connection.execute(query, parameters).fetchone() == (0,)
    await hello(consumer)
    assert connection.execute(query, parameters).fetchone() == (1,)
    await consumer.close()


STATE = "SELECT state FROM pg_stat_activity WHERE pid = %s"


@pytest.mark.parametrize("level", ["read committed", "serializable"])
async def test_no_transaction_stays_open_between_statements(
    database_url: str, connection: psycopg.Connection[Any], level: str
) -> None:
    """Whichever way the statement was run."""
    defaults(connection, default_transaction_isolation=level)
    async with Connection(database_url, NAME) as consumer:
        await hello(consumer)
        pid = await pid_of(consumer)
        assert connection.execute(STATE, [pid]).fetchone() == ("idle",)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"default_transaction_isolation": "repeatable read"},
        {"default_transaction_isolation": "serializable"},
        {"default_transaction_read_only": "on"},
        {"default_transaction_isolation": "serializable", "default_transaction_read_only": "on"},
        {"default_transaction_deferrable": "on", "default_transaction_isolation": "serializable"},
    ],
    ids=str,
)
async def test_four_connections_claim_side_by_side_whatever_the_role_is_set_to(
    database_url: str, connection: psycopg.Connection[Any], settings: dict[str, str]
) -> None:
    """Each job once, and nobody is thrown out for serialization (case-43)."""
    ids = enqueue(database_url, 1000)
    defaults(connection, **settings)
    claimed: list[int] = []

    async def work(consumer: Connection) -> None:
        while jobs := await claim(consumer, limit=7):
            claimed.extend(job.id for job in jobs)

    consumers = [Connection(database_url, NAME) for _ in range(4)]
    await asyncio.gather(*(work(consumer) for consumer in consumers))
    for consumer in consumers:
        assert not consumer.broken_once
        await consumer.close()
    assert sorted(claimed) == ids


async def test_two_tasks_on_one_connection_take_turns(
    consumer: Connection, database_url: str
) -> None:
    """Neither disturbs the other's transaction or result."""
    ids = enqueue(database_url, 100)
    batches = await asyncio.gather(*(claim(consumer, limit=10) for _ in range(10)))
    assert sorted(job.id for jobs in batches for job in jobs) == ids
    assert all(len(jobs) == 10 for jobs in batches)


# -- faults --------------------------------------------------------------------------------------


async def test_without_the_schema_the_command_is_named(empty_database_url: str) -> None:
    """Not a traceback about a relation."""
    async with Connection(empty_database_url, NAME) as consumer:
        with pytest.raises(SchemaError, match="run: outbox migrate"):
            await hello(consumer)


async def test_a_database_that_is_not_there_is_unavailable() -> None:
    """In few words, which hold neither URL nor password."""
    async with Connection("postgresql://u:secret@127.0.0.1:1/d", NAME) as consumer:
        with pytest.raises(DatabaseUnavailable) as refusal:
            await hello(consumer)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def kill(connection: psycopg.Connection[Any], pid: int) -> None:
    """End a session of the server, and wait until it is gone."""
    assert connection.execute("SELECT pg_terminate_backend(%s, 10000)", [pid]).fetchone() == (True,)


async def test_a_session_that_was_killed_is_opened_again(
    consumer: Connection, connection: psycopg.Connection[Any]
) -> None:
    """One call says that the database was away, the next one works."""
    await hello(consumer)
    pid = await pid_of(consumer)
    kill(connection, pid)
    with pytest.raises(DatabaseUnavailable):
        await hello(consumer)
    assert consumer.broken_once
    await hello(consumer)
    assert await pid_of(consumer) != pid


async def asleep(connection: psycopg.Connection[Any], pid: int) -> bool:
    """Whether that session is in its long statement."""
    row = connection.execute(
        "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = %s", [pid]
    ).fetchone()
    return row == (True,)


async def test_a_session_that_is_killed_in_a_statement_is_opened_again(
    consumer: Connection, connection: psycopg.Connection[Any], runs: Callable[[str], None]
) -> None:
    """Whoever waits for the statement is told; whether it was carried out is unknown."""
    pid = await pid_of(consumer)
    runs("SELECT 1 AS id FROM pg_sleep(60)")
    waiting = asyncio.create_task(consumer.fetch(Id, "any"))
    await aeventually(lambda: asleep(connection, pid))
    kill(connection, pid)
    with pytest.raises(DatabaseUnavailable):
        await waiting
    runs("SELECT 1 AS id")
    assert await consumer.fetch(Id, "any") == [Id(1)]


async def test_a_statement_without_an_answer_is_given_up(
    consumer: Connection,
    connection: psycopg.Connection[Any],
    runs: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server, or the way to it, is gone without a word; the next call has a new session."""
    monkeypatch.setattr(connections, "STATEMENT_SECONDS_MAX", 0.2)
    pid = await pid_of(consumer)
    runs("SELECT 1 AS id FROM pg_sleep(60)")
    with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.2 s"):
        await consumer.fetch(Id, "any")
    monkeypatch.setattr(connections, "STATEMENT_SECONDS_MAX", 30)
    runs("SELECT 1 AS id")
    assert await consumer.fetch(Id, "any") == [Id(1)]
    assert await pid_of(consumer) != pid


async def test_whoever_is_cancelled_in_a_statement_leaves_a_clean_connection(
    consumer: Connection, connection: psycopg.Connection[Any], runs: Callable[[str], None]
) -> None:
    """No half-read result is left for the next one."""
    pid = await pid_of(consumer)
    runs("SELECT 1 AS id FROM pg_sleep(60)")
    waiting = asyncio.create_task(consumer.fetch(Id, "any"))
    await aeventually(lambda: asleep(connection, pid))
    started = time.monotonic()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert time.monotonic() - started < 5
    runs("SELECT 2 AS id")
    assert await consumer.fetch(Id, "any") == [Id(2)]


async def test_a_statement_that_is_at_fault_says_so_itself(
    consumer: Connection, runs: Callable[[str], None]
) -> None:
    """Its own error comes out, and the session is still good for others."""
    pid = await pid_of(consumer)
    runs("SELECT CAST('x' AS integer) AS id")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        await consumer.fetch(Id, "any")
    runs("SELECT 1 AS id")
    assert await consumer.fetch(Id, "any") == [Id(1)]
    assert await pid_of(consumer) == pid
    assert not consumer.broken_once


@pytest.mark.parametrize("level", ["read committed", "serializable"])
async def test_timeouts_of_the_role_are_waited_out(
    database_url: str, connection: psycopg.Connection[Any], level: str
) -> None:
    """While somebody locks the table the consumer is told to come again, and then it goes on."""
    ids = enqueue(database_url, 1)
    defaults(
        connection,
        lock_timeout="100ms",
        statement_timeout="300ms",
        idle_in_transaction_session_timeout="500ms",
        default_transaction_isolation=level,
    )
    async with Connection(database_url, NAME) as consumer:
        with psycopg.connect(database_url) as other:
            other.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            other.execute("LOCK TABLE outbox.job IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(DatabaseUnavailable):
                await claim(consumer, limit=10)
        assert [job.id for job in await claim(consumer, limit=10)] == ids


async def test_an_idle_session_that_the_role_ends_is_opened_again(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """A consumer may be idle for hours; a setting of the role must not end it."""
    defaults(connection, idle_session_timeout="50ms")
    async with Connection(database_url, NAME) as consumer:
        pid = await pid_of(consumer)

        async def gone() -> bool:
            return connection.execute(STATE, [pid]).fetchone() is None

        await aeventually(gone)
        with pytest.raises(DatabaseUnavailable):
            await hello(consumer)
        # On a busy machine the next one, too, might be idle for too long before it has begun.
        defaults(connection, idle_session_timeout="10min")
        await hello(consumer)


async def test_a_migration_that_changes_a_type_is_survived(
    consumer: Connection, connection: psycopg.Connection[Any], database_url: str
) -> None:
    """The plans that the server has kept are out of date: at most one call says come again."""
    ids = enqueue(database_url, 30)
    claimed = [job.id for _ in range(12) for job in await claim(consumer, limit=1)]
    connection.execute("DROP VIEW outbox.job_status")
    connection.execute("ALTER TABLE outbox.job ALTER COLUMN attempts TYPE bigint")
    try:
        claimed += [job.id for job in await claim(consumer, limit=30)]
    except DatabaseUnavailable:
        claimed += [job.id for job in await claim(consumer, limit=30)]
    assert claimed == ids


async def test_closing_twice_and_using_it_again_is_fine(consumer: Connection) -> None:
    """A part of the consumer that ends does not have to know who else has closed it."""
    await hello(consumer)
    await consumer.close()
    await consumer.close()
    await hello(consumer)
