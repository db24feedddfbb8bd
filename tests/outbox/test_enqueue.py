"""Enqueueing: one INSERT in the caller's transaction, on whatever connection it is given."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, assert_type
from zoneinfo import ZoneInfo

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import NullPool

from outbox import InvalidJob, Outbox, WrongConnection, statements
from outbox.backoff import Backoff
from outbox.claim import Claims
from outbox.connection import Connection
from outbox.embedded import EmbeddedPostgres
from outbox.job import Attempt, Job, Request
from outbox.lease import Leases
from outbox.ledger import Begin, Intent, Ledger
from outbox.outcome import JobAction, Outcome, Policy
from outbox.settle import Settlement, Settler
from outbox.verdict import Place
from tests.databases import MEMORY, Databases
from tests.producers import (
    ASYNC_DRIVERS,
    KINDS,
    SYNC_DRIVERS,
    TOPIC,
    Producer,
    sqlalchemy_url,
)

AFTER = "(after)"


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for this file: its tests are many, since some run on every kind of caller."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def no_rows(connection: psycopg.Connection[Any]) -> None:
    """Each test begins with empty tables."""
    for table in ("job", "ended_job", "effect", "consumer"):
        connection.execute(f"DELETE FROM outbox.{table}".encode())


@pytest.fixture
def producing(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A producer's connection, with an open transaction after its first statement."""
    with psycopg.connect(database_url) as connection:
        yield connection
        if not connection.closed:
            connection.rollback()


@pytest.fixture(params=KINDS)
async def producer(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Producer]:
    """A caller of each kind that enqueue takes."""
    async with KINDS[request.param](database_url) as producer:
        yield producer


def enqueue(connection: psycopg.Connection[Any], effect_key: str, **given: Any) -> int:
    """Enqueue with what a test has no interest in filled in."""
    arguments: dict[str, Any] = {"topic": TOPIC, "payload": {"order_id": 102}, **given}
    return Outbox().enqueue(connection, effect_key=effect_key, **arguments)


def count(connection: psycopg.Connection[Any]) -> int:
    """How many jobs there are, as another session sees it."""
    row = connection.execute("SELECT count(*) FROM outbox.job").fetchone()
    assert row is not None
    return int(row[0])


# -- what is stored ----------------------------------------------------------------------------


async def test_every_argument_arrives_by_every_driver(
    producer: Producer, connection: psycopg.Connection[Any]
) -> None:
    """Text, numbers, moments and JSON are the same whatever carries them."""
    job_id = await producer.enqueue(
        "email-order-102.r1_A",
        topic="email.order_confirmation",
        payload={"text": "Grüße ☕ %s :x '", "n": 2**70, "zero": -0.0, "nul": "\\u0000"},
        available_at=datetime(2126, 7, 1, 12, 0, 0, 1, tzinfo=ZoneInfo("America/New_York")),
        expires_at=datetime(2126, 7, 1, 16, 0, 0, 2, tzinfo=UTC),
        priority=-32_768,
        ordering_key="customer 7 ☕",
        max_attempts=1_000_000,
    )
    await producer.commit()
    with connection.cursor(row_factory=dict_row) as cursor:
        row = cursor.execute(
            "SELECT id, topic, priority, position, effect_key, CAST(payload AS text),"
            " octet_length(payload_fingerprint) AS fingerprint_bytes, ordering_key, max_attempts,"
            " available_at, expires_at, waiting, attempts, claim_version, claimed_by, retry_first"
            " FROM outbox.job"
        ).fetchone()
    assert row == {
        "id": job_id,
        "topic": "email.order_confirmation",
        "priority": -32_768,
        "position": None,
        "effect_key": "email-order-102.r1_A",
        "payload": '{"text":"Grüße ☕ %s :x \'","n":1180591620717411303424,"zero":-0.0,'
        '"nul":"\\\\u0000"}',
        "fingerprint_bytes": 32,
        "ordering_key": "customer 7 ☕",
        "max_attempts": 1_000_000,
        "available_at": datetime(2126, 7, 1, 16, 0, 0, 1, tzinfo=UTC),
        "expires_at": datetime(2126, 7, 1, 16, 0, 0, 2, tzinfo=UTC),
        "waiting": "order",
        "attempts": 0,
        "claim_version": 0,
        "claimed_by": None,
        "retry_first": False,
    }


async def test_a_refused_job_leaves_the_transaction_as_it_was(
    producer: Producer, connection: psycopg.Connection[Any]
) -> None:
    """The refusal comes before any SQL: what was written before and after it is committed."""
    first = await producer.enqueue("email-order-1")
    with pytest.raises(InvalidJob, match=r"payload\.lines\[1\]\.price: nan is no JSON number"):
        await producer.enqueue("e", payload={"lines": [{}, {"price": float("nan")}]})
    with pytest.raises(InvalidJob, match="effect_key"):
        await producer.enqueue("")
    second = await producer.enqueue("email-order-2")
    await producer.commit()
    ids = connection.execute("SELECT id FROM outbox.job ORDER BY id").fetchall()
    assert ids == [(first,), (second,)]


def test_a_job_without_options_is_ready_at_once(
    producing: psycopg.Connection[Any], connection: psycopg.Connection[Any]
) -> None:
    """Its id is its place in the queue; nothing is set that was not asked for."""
    job_id = enqueue(producing, "email-order-102")
    producing.commit()
    row = connection.execute(
        "SELECT position, waiting, priority, available_at, expires_at, ordering_key, max_attempts"
        " FROM outbox.job"
    ).fetchone()
    assert row == (job_id, None, 0, None, None, None, None)


class TopicName(StrEnum):
    """Topics of an application that likes enums."""

    CONFIRMATION = TOPIC


class Priority(IntEnum):
    """Priorities of the same."""

    HIGH = -1


async def test_enums_of_text_and_numbers_are_what_they_stand_for(
    producer: Producer, connection: psycopg.Connection[Any]
) -> None:
    """Each driver stores the value, not the name of the member."""
    await producer.enqueue("e-1", topic=TopicName.CONFIRMATION, priority=Priority.HIGH)
    await producer.commit()
    row = connection.execute("SELECT topic, priority FROM outbox.job").fetchone()
    assert row == ("email.order_confirmation", -1)


@pytest.mark.parametrize(
    ("given", "state"),
    [
        ({}, "ready"),
        ({"available_at": timedelta(hours=1)}, "scheduled"),
        ({"available_at": timedelta(hours=-1)}, "ready"),
        ({"expires_at": timedelta(hours=-1)}, "ready"),
        ({"ordering_key": "k"}, "blocked"),
        ({"ordering_key": "k", "available_at": timedelta(hours=1)}, "blocked"),
    ],
)
def test_a_new_job_has_the_state_that_people_expect(
    producing: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    given: dict[str, Any],
    state: str,
) -> None:
    """What is for later is scheduled, what has an order waits for its turn, the rest is ready."""
    moments = {
        name: datetime.now(UTC) + value if isinstance(value, timedelta) else value
        for name, value in given.items()
    }
    enqueue(producing, "email-order-102", **moments)
    producing.commit()
    assert connection.execute("SELECT state FROM outbox.job_status").fetchall() == [(state,)]


def test_what_the_type_checker_sees(producing: psycopg.Connection[Any], database_url: str) -> None:
    """A sync caller gets the id, an async one something to await."""

    def of_sync(session: Session, connection: sqlalchemy.Connection) -> None:
        assert_type(Outbox().enqueue(session, "t", {}, effect_key="k"), int)
        assert_type(Outbox().enqueue(connection, "t", {}, effect_key="k"), int)

    async def of_async(session: AsyncSession, connection: psycopg.AsyncConnection) -> None:
        assert_type(Outbox().enqueue(session, "t", {}, effect_key="k"), Awaitable[int])
        assert_type(Outbox().enqueue(connection, "t", {}, effect_key="k"), Awaitable[int])

    assert isinstance(Outbox().enqueue(producing, "t", {}, effect_key="k"), int)
    assert asyncio.iscoroutinefunction(of_async)
    assert callable(of_sync)


# -- what it refuses: connections ----------------------------------------------------------------


def refuses_autocommit(enqueue_there: Callable[[], object]) -> None:
    """Check the refusal and its remedy."""
    with pytest.raises(WrongConnection, match=r"in autocommit mode: .* begin one") as refusal:
        enqueue_there()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("driver", SYNC_DRIVERS)
@pytest.mark.parametrize("how", ["engine", "options of the engine", "options of the connection"])
def test_autocommit_of_sqlalchemy_is_refused(
    database_url: str, connection: psycopg.Connection[Any], driver: str, how: str
) -> None:
    """Whichever way it was asked for, in a Connection and in a Session, nothing is written."""
    url = sqlalchemy_url(database_url, driver)
    level = {"isolation_level": "AUTOCOMMIT"} if how == "engine" else {}
    engine = sqlalchemy.create_engine(url, poolclass=NullPool, **level)
    if how == "options of the engine":
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as there:
        if how == "options of the connection":
            there.execution_options(isolation_level="AUTOCOMMIT")
        there.execute(sqlalchemy.text("SELECT 1"))
        assert there.in_transaction()
        refuses_autocommit(lambda: Outbox().enqueue(there, TOPIC, {}, effect_key="k"))
        with Session(there) as session:
            refuses_autocommit(lambda: Outbox().enqueue(session, TOPIC, {}, effect_key="k"))
    assert count(connection) == 0


@pytest.mark.parametrize("driver", ASYNC_DRIVERS)
@pytest.mark.parametrize("how", ["engine", "options of the connection"])
async def test_autocommit_of_async_sqlalchemy_is_refused(
    database_url: str, connection: psycopg.Connection[Any], driver: str, how: str
) -> None:
    """The same for what has to be awaited."""
    url = sqlalchemy_url(database_url, driver)
    level = {"isolation_level": "AUTOCOMMIT"} if how == "engine" else {}
    engine = create_async_engine(url, poolclass=NullPool, **level)
    async with engine.connect() as there:
        if how == "options of the connection":
            await there.execution_options(isolation_level="AUTOCOMMIT")
        await there.execute(sqlalchemy.text("SELECT 1"))
        with pytest.raises(WrongConnection, match="in autocommit mode"):
            await Outbox().enqueue(there, TOPIC, {}, effect_key="k")
        async with AsyncSession(there) as session:
            with pytest.raises(WrongConnection, match="in autocommit mode"):
                await Outbox().enqueue(session, TOPIC, {}, effect_key="k")
    assert count(connection) == 0


def test_a_session_with_autocommit_for_one_transaction_is_refused(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """The next transaction of the same session, on the usual level, is fine."""
    engine = sqlalchemy.create_engine(sqlalchemy_url(database_url, "psycopg"))
    with Session(engine) as session:
        session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        refuses_autocommit(lambda: Outbox().enqueue(session, TOPIC, {}, effect_key="k"))
        session.rollback()
        Outbox().enqueue(session, TOPIC, {}, effect_key="k")
        session.commit()
    engine.dispose()
    assert count(connection) == 1


async def test_autocommit_of_psycopg_is_refused(
    connection: psycopg.Connection[Any], aconnection: psycopg.AsyncConnection[Any]
) -> None:
    """An idle autocommit connection has no transaction to join."""
    refuses_autocommit(lambda: enqueue(connection, "k"))
    with pytest.raises(WrongConnection, match="in autocommit mode"):
        await Outbox().enqueue(aconnection, TOPIC, {}, effect_key="k")
    assert count(connection) == 0


async def test_autocommit_of_psycopg_is_refused_in_a_pipeline(
    connection: psycopg.Connection[Any],
    producing: psycopg.Connection[Any],
    aconnection: psycopg.AsyncConnection[Any],
) -> None:
    """Statements that are under way are no transaction, though libpq calls the session active."""
    producing.execute("CREATE TABLE IF NOT EXISTS orders (id bigint)")
    producing.commit()
    with connection.pipeline():
        connection.execute("INSERT INTO orders VALUES (1)")
        refuses_autocommit(lambda: enqueue(connection, "k"))
    async with aconnection.pipeline():
        await aconnection.execute("INSERT INTO orders VALUES (2)")
        with pytest.raises(WrongConnection, match="in autocommit mode"):
            await Outbox().enqueue(aconnection, TOPIC, {}, effect_key="k")
    assert count(connection) == 0


async def test_a_transaction_of_an_autocommit_connection_is_joined(
    connection: psycopg.Connection[Any], aconnection: psycopg.AsyncConnection[Any]
) -> None:
    """In a block, by a BEGIN of one's own, and with the BEGIN still in the pipeline."""
    with connection.transaction():
        enqueue(connection, "in-a-block")
    connection.execute("BEGIN")
    enqueue(connection, "by-begin")
    connection.execute("COMMIT")
    with connection.pipeline():
        connection.execute("BEGIN")
        enqueue(connection, "in-a-pipeline")
        connection.execute("COMMIT")
    async with aconnection.pipeline(), aconnection.transaction():
        await aconnection.execute("SELECT 1")
        await Outbox().enqueue(aconnection, TOPIC, {}, effect_key="async-pipeline")
    assert count(connection) == 4


def other_objects(database_url: str) -> dict[str, Any]:
    """What else somebody may think of passing, by the name that the error calls it."""
    engine = sqlalchemy.create_engine(sqlalchemy_url(database_url, "psycopg"))
    return {
        "builtins.NoneType": None,
        "builtins.str": database_url,
        "sqlalchemy.engine.base.Engine": engine,
        "sqlalchemy.orm.session.sessionmaker": sessionmaker(engine),
        "sqlalchemy.ext.asyncio.engine.AsyncEngine": create_async_engine(
            sqlalchemy_url(database_url, "psycopg")
        ),
        "sqlite3.Connection": sqlite3.connect(":memory:"),
    }


def test_any_other_object_is_refused_by_name(
    database_url: str, producing: psycopg.Connection[Any], connection: psycopg.Connection[Any]
) -> None:
    """The error says what was given and what is taken, and never repeats the value."""
    others = other_objects(database_url)
    others["psycopg.Cursor"] = producing.cursor()
    for name, other in others.items():
        with pytest.raises(WrongConnection) as refusal:
            Outbox().enqueue(other, TOPIC, {}, effect_key="k")
        assert str(refusal.value) == (
            "enqueue takes a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, or a "
            f"psycopg connection, not {name}"
        )
    others["sqlite3.Connection"].close()
    assert count(connection) == 0


def test_another_database_is_refused_by_name() -> None:
    """A job in another database than the order could not be in its transaction."""
    engine = sqlalchemy.create_engine("sqlite://")
    with Session(engine) as session:
        with pytest.raises(
            WrongConnection, match=r"needs a connection to PostgreSQL, .* to sqlite"
        ):
            Outbox().enqueue(session, TOPIC, {}, effect_key="k")
        assert session.scalar(sqlalchemy.text("SELECT 1")) == 1
    engine.dispose()


def test_a_closed_connection_says_so_itself(producing: psycopg.Connection[Any]) -> None:
    """It is no autocommit connection, whatever its last state was."""
    producing.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        enqueue(producing, "k")


# -- what it refuses: arguments ------------------------------------------------------------------

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)

ALLOWED: list[dict[str, Any]] = [
    {"effect_key": "0"},
    {"effect_key": "-"},
    {"effect_key": "." * 200},
    {"effect_key": "AZaz09._-"},
    {"topic": "0"},
    {"topic": "a" * 100},
    {"topic": "Email.order-confirmation_2"},
    {"ordering_key": "0"},
    {"ordering_key": " "},
    {"ordering_key": "👍" * 200},
    {"priority": -32_768},
    {"priority": 32_767},
    {"max_attempts": 1},
    {"available_at": datetime.max.replace(tzinfo=UTC)},
    {"available_at": datetime.min.replace(tzinfo=UTC)},
    {"available_at": NOON, "expires_at": NOON + timedelta(microseconds=1)},
    {"payload": {"text": "👍" * 2000}},
]


def short(given: object) -> str:
    """A test's id."""
    return repr(given)[:60]


@pytest.mark.parametrize("given", ALLOWED, ids=short)
def test_what_is_just_allowed_is_stored(
    producing: psycopg.Connection[Any], given: dict[str, Any]
) -> None:
    """The database agrees with what the check lets through."""
    job_id = enqueue(producing, **{"effect_key": "k", **given})
    with producing.cursor(row_factory=dict_row) as cursor:
        cursor.execute("SELECT * FROM outbox.job WHERE id = %s", [job_id])
        row = cursor.fetchone()
    assert row is not None
    stored = {name: row[name] for name in given if name not in {"payload", "available_at"}}
    assert stored == {name: value for name, value in given.items() if name in stored}


class NoOffset(tzinfo):
    """A time zone that does not know."""

    def utcoffset(self, _: datetime | None) -> None:
        return None

    def dst(self, _: datetime | None) -> None:
        return None

    def tzname(self, _: datetime | None) -> str:
        return "nowhere"


EFFECT_KEY = r"does not match [A-Za-z0-9._-]{1,200}"
TOPIC_SHAPE = r"does not match [A-Za-z0-9][A-Za-z0-9._-]{0,99}"

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"effect_key": ""}, f"effect_key: '' {EFFECT_KEY}"),
    ({"effect_key": " "}, f"effect_key: ' ' {EFFECT_KEY}"),
    ({"effect_key": "abc\n"}, f"effect_key: 'abc\\n' {EFFECT_KEY}"),
    ({"effect_key": "\nabc"}, f"effect_key: '\\nabc' {EFFECT_KEY}"),
    ({"effect_key": "a/b"}, f"effect_key: 'a/b' {EFFECT_KEY}"),
    ({"effect_key": "a" * 201}, f"effect_key: text of 201 characters {EFFECT_KEY}"),
    ({"effect_key": "👍" * 2000}, f"effect_key: text of 2000 characters {EFFECT_KEY}"),
    ({"effect_key": "k\x00"}, f"effect_key: 'k\\x00' {EFFECT_KEY}"),
    ({"effect_key": "\uff41"}, f"effect_key: text of 1 characters {EFFECT_KEY}"),
    ({"effect_key": "a@b.example"}, f"effect_key: text of 11 characters {EFFECT_KEY}"),
    ({"effect_key": None}, "effect_key: must be text, not NoneType"),
    ({"effect_key": 102}, "effect_key: must be text, not int"),
    ({"effect_key": b"k"}, "effect_key: must be text, not bytes"),
    ({"topic": ""}, f"topic: '' {TOPIC_SHAPE}"),
    ({"topic": ".email"}, f"topic: '.email' {TOPIC_SHAPE}"),
    ({"topic": "email\n"}, f"topic: 'email\\n' {TOPIC_SHAPE}"),
    ({"topic": "a" * 101}, f"topic: text of 101 characters {TOPIC_SHAPE}"),
    ({"topic": None}, "topic: must be text, not NoneType"),
    ({"ordering_key": ""}, "ordering_key: 0 characters; between 1 and 200 are allowed"),
    ({"ordering_key": "x" * 201}, "ordering_key: 201 characters; between 1 and 200 are allowed"),
    ({"ordering_key": "a\x00"}, "ordering_key: holds a NUL character (U+0000)"),
    ({"ordering_key": "\ud83d"}, "ordering_key: holds half of a surrogate pair"),
    ({"ordering_key": 7}, "ordering_key: must be text, not int"),
    ({"priority": -32_769}, "priority: -32769 is not between -32768 and 32767"),
    ({"priority": 32_768}, "priority: 32768 is not between -32768 and 32767"),
    ({"priority": 1.0}, "priority: must be a whole number, not float"),
    ({"priority": True}, "priority: must be a whole number, not bool"),
    ({"priority": None}, "priority: must be a whole number, not NoneType"),
    ({"max_attempts": 0}, "max_attempts: 0 is not between 1 and 1000000"),
    ({"max_attempts": 1_000_001}, "max_attempts: 1000001 is not between 1 and 1000000"),
    ({"max_attempts": "5"}, "max_attempts: must be a whole number, not str"),
    ({"available_at": datetime(2026, 7, 1, 12)}, "available_at: has no time zone; pass e.g. "),  # noqa: DTZ001
    ({"expires_at": datetime(2026, 7, 1, 12)}, "expires_at: has no time zone; pass e.g. "),  # noqa: DTZ001
    ({"available_at": NOON.replace(tzinfo=NoOffset())}, "available_at: has no time zone"),
    ({"available_at": NOON.date()}, "available_at: must be a datetime, not date"),
    ({"available_at": "2026-07-01"}, "available_at: must be a datetime, not str"),
    (
        {"available_at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))},
        "available_at: lies outside the years 1 to 9999 in UTC",
    ),
    (
        {"expires_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))},
        "expires_at: lies outside the years 1 to 9999 in UTC",
    ),
    (
        {"available_at": NOON, "expires_at": NOON},
        "expires_at: is not after available_at: the job could never run",
    ),
    (
        {"available_at": NOON, "expires_at": NOON.astimezone(timezone(timedelta(hours=9)))},
        "expires_at: is not after available_at: the job could never run",
    ),
    ({"payload": ["a"]}, "payload: must be a mapping, not list"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[short(given) for given, _ in REFUSED])
def test_a_wrong_argument_is_refused_with_its_name(
    producing: psycopg.Connection[Any], given: dict[str, Any], message: str
) -> None:
    """One line that names the field; long values and what may be an address are not repeated."""
    with pytest.raises(InvalidJob) as refusal:
        enqueue(producing, **{"effect_key": "k", **given})
    assert str(refusal.value).startswith(message)
    assert refusal.value.field == message.partition(":")[0]
    assert "\n" not in str(refusal.value)
    assert producing.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


ROW: dict[str, Any] = {
    "id": 1,
    "topic": TOPIC,
    "position": 1,
    "effect_key": "k",
    "payload": "{}",
    "payload_fingerprint": b"\x00" * 32,
}

REFUSED_ROWS: list[dict[str, Any]] = [
    {"effect_key": ""},
    {"effect_key": " "},
    {"effect_key": "abc\n"},
    {"effect_key": "a" * 201},
    {"effect_key": "ä"},
    {"effect_key": None},
    {"topic": ""},
    {"topic": ".a"},
    {"topic": "a\n"},
    {"topic": "a" * 101},
    {"topic": None},
    {"ordering_key": ""},
    {"ordering_key": "x" * 201},
    {"max_attempts": 0},
    {"payload": None},
    {"payload": "NaN"},
    {"payload": '{"a":'},
    {"payload_fingerprint": b"\x00" * 31},
    {"payload_fingerprint": None},
    {"position": None},
    {"waiting": "order"},
    {"waiting": "for Godot", "position": None},
    {"waiting": "schedule", "position": None},
    {"waiting": "backoff", "position": None},
    {"lease_until": NOON},
    {"claimed_by": "me"},
    {"claimed_by": "me", "claimed_at": NOON},
]


@pytest.mark.parametrize("given", REFUSED_ROWS, ids=short)
def test_the_database_itself_refuses_what_enqueue_does(
    producing: psycopg.Connection[Any], given: dict[str, Any]
) -> None:
    """Behind the check in Python there is one in the table, for whoever writes SQL by hand."""
    row = ROW | given
    query = f"INSERT INTO outbox.job ({', '.join(row)}) VALUES ({', '.join(['%s'] * len(row))})"
    with pytest.raises((psycopg.IntegrityError, psycopg.DataError)):
        producing.execute(query.encode(), list(row.values()))


def test_the_row_that_these_refusals_vary_is_itself_allowed(
    producing: psycopg.Connection[Any],
) -> None:
    """Else the refusals above would prove nothing."""
    query = f"INSERT INTO outbox.job ({', '.join(ROW)}) VALUES ({', '.join(['%s'] * len(ROW))})"
    assert producing.execute(query.encode(), list(ROW.values())).rowcount == 1


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Kathmandu"])
def test_a_moment_is_the_same_in_every_session_time_zone(
    database_url: str, connection: psycopg.Connection[Any], zone: str
) -> None:
    """A job for noon in Berlin is for noon in Berlin, whatever zone the session has."""
    with psycopg.connect(database_url, options=f"-c TimeZone={zone}") as producing:
        enqueue(
            producing, "k", available_at=datetime(2126, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
        )
    row = connection.execute("SELECT extract(epoch FROM available_at) FROM outbox.job").fetchone()
    assert row == (datetime(2126, 7, 1, 10, tzinfo=UTC).timestamp(),)


# -- one key, many jobs --------------------------------------------------------------------------


class Bench:
    """A consumer's parts, as far as the call to the provider."""

    def __init__(self, database_url: str) -> None:
        claimed_by = "a:1:b"
        self.connection = Connection(database_url, "bench")
        self.claims = Claims(
            self.connection,
            Leases(self.connection, claimed_by, 60),
            claimed_by,
            [TOPIC],
            lease_seconds=60,
            poll_seconds=1,
        )
        policy = Policy(3600, repeat_unknown=False, max_attempts=5, backoff=Backoff())
        place = Place("resend", "test", deadline_seconds=30)
        self.ledger = Ledger(self.connection, claimed_by, place, lambda _: policy)
        self.settler = Settler(self.connection, claimed_by)

    async def claim(self) -> list[Job]:
        """Look through all of the queue."""
        await self.claims.scan()
        return list(await self.claims.take(100))

    async def begin(self, jobs: list[Job]) -> list[Begin]:
        """Begin in one batch."""
        request = Request("wire-key", b"body")
        return await self.ledger.begin([Intent(job, request) for job in jobs])

    async def finish(self) -> list[str]:
        """Bring all jobs that are ready to their end; returns what became of each claim."""
        ends: list[str] = []
        while jobs := await self.claim():
            for job, begun in zip(jobs, await self.begin(jobs), strict=True):
                assert not isinstance(begun, Exception)
                outcome = begun if isinstance(begun, Outcome) else accepted(begun)
                settled = await self.settler.settle([Settlement(job, outcome)])
                assert settled[0].claim_held
                ends.append(str(outcome.job_action))
            await self.hasten()
        return ends

    async def hasten(self) -> None:
        """Let what waits for a second try wait no longer."""
        raw = await self.connection.raw()
        await raw.execute(
            "UPDATE outbox.job SET available_at = clock_timestamp() WHERE waiting = 'backoff'"
        )


def accepted(attempt: Attempt) -> Outcome:
    """The provider has taken it."""
    return Outcome(
        JobAction.DONE,
        effect_state="delivered",  # type: ignore[arg-type]
        requests_seen=attempt.requests_sent,
        nothing_open=True,
        message_id="m-1",
    )


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    """A consumer's parts on this file's database."""
    bench = Bench(database_url)
    yield bench
    await bench.connection.close()


async def test_two_jobs_of_one_key_in_one_transaction_are_one_effect(
    producing: psycopg.Connection[Any], connection: psycopg.Connection[Any], bench: Bench
) -> None:
    """Both are stored, without an error; in one batch only the first begins the effect."""
    first, second = enqueue(producing, "email-order-102"), enqueue(producing, "email-order-102")
    producing.commit()
    assert first < second
    jobs = await bench.claim()
    begun = dict(zip([job.id for job in jobs], await bench.begin(jobs), strict=True))
    assert isinstance(begun[first], Attempt)
    assert isinstance(begun[second], Outcome)


async def test_two_jobs_of_one_key_in_two_transactions_are_one_effect(
    producing: psycopg.Connection[Any], bench: Bench
) -> None:
    """The second ends as a duplicate."""
    for _ in range(2):
        enqueue(producing, "email-order-102")
        producing.commit()
    assert sorted(await bench.finish()) == ["done", "duplicate", "retry"]


async def test_two_open_transactions_with_one_key_never_wait_for_each_other(
    database_url: str, connection: psycopg.Connection[Any], bench: Bench
) -> None:
    """Neither enqueue nor commit takes a lock that the other has; they may end in any order."""
    with ExitStack() as stack:
        options = "-c lock_timeout=1 -c statement_timeout=5000"
        one, two = (
            stack.enter_context(psycopg.connect(database_url, options=options)) for _ in range(2)
        )
        enqueue(one, "email-order-102", ordering_key="customer-7")
        enqueue(two, "email-order-102", ordering_key="customer-7")
        enqueue(one, "email-order-102")
        two.commit()
        enqueue(two, "email-order-102")
        one.commit()
        two.rollback()
    assert count(connection) == 3
    ends = await bench.finish()
    assert ends.count("done") == 1
    assert ends.count("duplicate") == 2


async def test_a_key_that_was_delivered_long_ago_ends_as_duplicate(
    producing: psycopg.Connection[Any], connection: psycopg.Connection[Any], bench: Bench
) -> None:
    """The ledger's row is all that is left of the first job, and it is enough."""
    enqueue(producing, "email-order-102")
    producing.commit()
    assert await bench.finish() == ["done"]
    connection.execute(
        "UPDATE outbox.effect SET settled_at = settled_at - interval '10000 hours',"
        " first_attempt_at = first_attempt_at - interval '10000 hours'"
    )
    enqueue(producing, "email-order-102")
    producing.commit()
    assert await bench.finish() == ["duplicate"]
    sent = connection.execute("SELECT requests_sent, state FROM outbox.effect").fetchall()
    assert sent == [(1, "delivered")]


async def test_jobs_of_one_key_with_another_payload_are_a_conflict(
    producing: psycopg.Connection[Any], bench: Bench
) -> None:
    """Whoever came first is sent; the other is dead with the reason, not sent in its place."""
    enqueue(producing, "email-order-102", payload={"total": "10.00"})
    producing.commit()
    assert await bench.finish() == ["done"]
    enqueue(producing, "email-order-102", payload={"total": "11.00"})
    producing.commit()
    assert await bench.finish() == ["dead"]


async def test_a_job_that_commits_after_a_later_one_is_not_skipped(
    producing: psycopg.Connection[Any], database_url: str, bench: Bench
) -> None:
    """Ids are given before the commit, so the lower one may come last (case-26)."""
    early = enqueue(producing, "email-order-101")
    with psycopg.connect(database_url) as other:
        late = enqueue(other, "email-order-102")
    assert [job.id for job in await bench.claim()] == [late]
    producing.commit()
    assert [job.id for job in await bench.claim()] == [early]
    assert await bench.claim() == []


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_producers_on_a_stricter_level_do_not_get_in_each_others_way(
    database_url: str, connection: psycopg.Connection[Any], level: str
) -> None:
    """Two overlapping transactions that only enqueue both commit, with a sleeper to read."""
    sleep(connection)
    with ExitStack() as stack:
        options = f"-c default_transaction_isolation={level.replace(' ', chr(92) + ' ')}"
        one, two = (
            stack.enter_context(psycopg.connect(database_url, options=options)) for _ in range(2)
        )
        for number in range(20):
            enqueue(one, f"one-{number}")
            enqueue(two, f"two-{number}")
        one.commit()
        two.commit()
    assert count(connection) == 40


# -- wake-ups ------------------------------------------------------------------------------------


def sleep(
    connection: psycopg.Connection[Any],
    topics: tuple[str, ...] = (TOPIC,),
    seconds: float | None = 60,
) -> None:
    """Note a consumer that sleeps for so long, or is awake."""
    connection.execute(
        statements.psycopg("note_consumer").encode(),
        {
            "claimed_by": "a:1:b",
            "topics": list(topics),
            "seen_seconds": 60,
            "sleep_seconds": seconds,
        },
    )


@pytest.fixture
def listening(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that hears every wake-up."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("LISTEN outbox_ready")
        yield connection


def heard(listening: psycopg.Connection[Any]) -> list[str]:
    """What has come until now; notifications come in the order of the commits."""
    with psycopg.connect(listening.info.dsn, autocommit=True) as other:
        other.execute("SELECT pg_notify('outbox_ready', %s)", [AFTER])
    found: list[str] = []
    for notification in listening.notifies(timeout=10):
        if notification.payload == AFTER:
            return found
        found.append(notification.payload)
    raise AssertionError("the own notification did not come")


def test_a_transaction_wakes_once_per_topic_however_much_it_enqueues(
    producing: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    listening: psycopg.Connection[Any],
) -> None:
    """Ten thousand enqueues in one transaction are ten thousand jobs and two small wake-ups."""
    sleep(connection, (TOPIC, "other.topic"))
    for number in range(10_000):
        topic = "other.topic" if number % 10 == 0 else TOPIC
        enqueue(producing, f"email-order-{number}", topic=topic)
    assert heard(listening) == []
    producing.commit()
    assert sorted(heard(listening)) == [TOPIC, "other.topic"]
    assert count(connection) == 10_000


def test_a_wake_up_is_as_small_as_its_topic(
    producing: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    listening: psycopg.Connection[Any],
) -> None:
    """Neither a large payload nor characters of many bytes can break the business transaction."""
    topic = "t" * 100
    sleep(connection, (topic,))
    enqueue(
        producing, "k" * 200, topic=topic, payload={"x": "👍" * 60_000}, ordering_key="👍" * 200
    )
    producing.commit()
    assert heard(listening) == [topic]


@pytest.mark.parametrize(
    ("topics", "seconds"),
    [((TOPIC,), None), ((TOPIC,), -1.0), (("other.topic",), 60.0), ((), 60.0)],
    ids=["awake", "sleep is over", "serves another topic", "serves nothing"],
)
def test_nobody_is_woken_who_does_not_sleep_for_this_topic(
    producing: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    listening: psycopg.Connection[Any],
    topics: tuple[str, ...],
    seconds: float | None,
) -> None:
    """A NOTIFY makes all committers wait for each other: it goes out only where it helps."""
    sleep(connection, topics, seconds)
    enqueue(producing, "email-order-102")
    producing.commit()
    assert heard(listening) == []


def test_without_any_consumer_nobody_is_woken(
    producing: psycopg.Connection[Any], listening: psycopg.Connection[Any]
) -> None:
    """The table of consumers may be empty."""
    enqueue(producing, "email-order-102")
    producing.commit()
    assert heard(listening) == []


def test_a_job_for_later_wakes_nobody(
    producing: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    listening: psycopg.Connection[Any],
) -> None:
    """There is nothing to do yet; one whose time has come, or that stands in a line, does wake."""
    sleep(connection)
    enqueue(producing, "k", available_at=datetime.now(UTC) + timedelta(hours=1))
    producing.commit()
    assert heard(listening) == []
    enqueue(producing, "k", available_at=datetime.now(UTC) - timedelta(hours=1))
    producing.commit()
    assert heard(listening) == [TOPIC]
    enqueue(producing, "k", ordering_key="customer-7")
    producing.commit()
    assert heard(listening) == [TOPIC]


@pytest.mark.parametrize(
    ("setting", "argument", "wakes"),
    [
        (None, None, True),
        ("", None, True),
        ("1", None, True),
        ("true", None, True),
        ("0", None, False),
        ("false", None, False),
        ("No", None, False),
        ("OFF", None, False),
        ("n", None, False),
        ("F", None, False),
        ("0", True, True),
        ("1", False, False),
        (None, False, False),
    ],
)
def test_wake_ups_can_be_switched_off(
    producing: psycopg.Connection[Any],
    connection: psycopg.Connection[Any],
    listening: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    setting: str | None,
    argument: bool | None,
    wakes: bool,
) -> None:
    """By OUTBOX_NOTIFY for the process, by ``notify`` in the code; the code has the last word."""
    if setting is not None:
        monkeypatch.setenv("OUTBOX_NOTIFY", setting)
    sleep(connection)
    Outbox(notify=argument).enqueue(producing, TOPIC, {}, effect_key="k")
    producing.commit()
    assert heard(listening) == ([TOPIC] if wakes else [])
    assert count(connection) == 1


@pytest.fixture(scope="module")
def url_with_prepared_transactions(database_url: str, databases: Databases) -> Iterator[str]:
    """A database whose server allows PREPARE TRANSACTION: this one, or one of our own.

    PostgreSQL's default is to allow none, and then it refuses for that before it looks further.
    """
    row = databases.admin.execute("SHOW max_prepared_transactions").fetchone()
    if row and int(row[0]) > 0:
        yield database_url
        return
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        Path(directory).chmod(0o755)
        server = EmbeddedPostgres(Path(directory))
        with psycopg.connect(server.start(), autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET max_prepared_transactions = 5")
        server.stop()
        from outbox import schema

        schema.migrate(server.start())
        yield server.url()
        server.wipe()


def test_a_prepared_transaction_needs_wake_ups_switched_off(
    url_with_prepared_transactions: str,
) -> None:
    """PostgreSQL refuses to prepare a transaction with a NOTIFY; without, all goes well."""
    url = url_with_prepared_transactions
    with psycopg.connect(url, autocommit=True) as connection, psycopg.connect(url) as producing:
        sleep(connection)
        Outbox(notify=True).enqueue(producing, TOPIC, {}, effect_key="k")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            producing.execute("PREPARE TRANSACTION 'with'")
        producing.rollback()
        Outbox(notify=False).enqueue(producing, TOPIC, {}, effect_key="committed")
        producing.execute("PREPARE TRANSACTION 'one'")
        producing.rollback()
        Outbox(notify=False).enqueue(producing, TOPIC, {}, effect_key="rolled-back")
        producing.execute("PREPARE TRANSACTION 'two'")
        producing.rollback()
        assert count(connection) == 0
        connection.execute("COMMIT PREPARED 'one'")
        connection.execute("ROLLBACK PREPARED 'two'")
        assert connection.execute("SELECT effect_key FROM outbox.job").fetchall() == [
            ("committed",)
        ]


# -- what it imports -----------------------------------------------------------------------------

PRODUCER = """
import json, os, sys
from outbox import Outbox
foreign = [n for n in sys.modules if n.split(".")[0] in
           ("sqlalchemy", "psycopg", "psycopg2", "asyncpg", "httpx", "pydantic", "typer", "rich")]
assert not foreign, foreign
import sqlalchemy
engine = sqlalchemy.create_engine(os.environ["DATABASE"])
with engine.begin() as connection:
    job_id = Outbox().enqueue(connection, "a.topic", {"order_id": 102}, effect_key="k")
print(json.dumps({"job_id": job_id, "modules": sorted({n.split(".")[0] for n in sys.modules})}))
"""


def test_a_producer_imports_its_own_driver_and_no_other(
    database_url: str, connection: psycopg.Connection[Any]
) -> None:
    """On psycopg2 neither psycopg nor anything of a consumer is loaded, nor needed."""
    done = subprocess.run(
        [sys.executable, "-c", PRODUCER],
        env=os.environ | {"DATABASE": sqlalchemy_url(database_url, "psycopg2")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    loaded = set(answer["modules"])
    assert {"psycopg2", "sqlalchemy"} <= loaded
    assert not loaded & {"psycopg", "asyncpg", "httpx", "pydantic", "jinja2", "typer", "consumers"}
    assert connection.execute("SELECT id FROM outbox.job").fetchall() == [(answer["job_id"],)]
