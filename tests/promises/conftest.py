"""What the promises' tests share: jobs to enqueue, a scripted provider, a look at the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from psycopg.rows import dict_row

from outbox import Outbox
from tests.hurry import WAITS
from tests.promises.by_hand import ByHand
from tests.promises.scripted import TOPIC, ScriptedGateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.databases import Databases

Row = dict[str, Any]


class Tables:
    """The tables as an operator's SQL would see them."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self.connection = connection

    def rows(self, query: str, *values: object) -> list[Row]:
        """All rows of a query."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(query.encode(), values).fetchall()

    def job(self, id_: int) -> Row | None:
        """A live job."""
        return next(iter(self.rows("SELECT * FROM outbox.job WHERE id = %s", id_)), None)

    def effect(self, key: str) -> Row:
        """A key's row in the ledger."""
        return self.rows("SELECT * FROM outbox.effect WHERE effect_key = %s", key)[0]

    def effects(self) -> dict[str, Row]:
        """The ledger by key."""
        return {row["effect_key"]: row for row in self.rows("SELECT * FROM outbox.effect")}

    def states(self) -> dict[int, tuple[str, str | None]]:
        """State and reason of every job, as the view for people has it; each job once."""
        rows = self.rows("SELECT id, state, reason FROM outbox.job_status ORDER BY id")
        states = {row["id"]: (row["state"], row["reason"]) for row in rows}
        assert len(states) == len(rows), "a job is shown twice"
        return states

    def everything(self) -> list[list[Row]]:
        """All that the library keeps, to be compared with later."""
        tables = ("outbox.job", "outbox.effect", "outbox.ended_job")
        return [self.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]

    def expire_leases(self) -> None:
        """What the time that a lease takes would do to it."""
        self.connection.execute(
            "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE lease_until IS NOT NULL"
        )

    def age_open_effects(self, seconds: float) -> None:
        """What waiting would do to the age of every open try."""
        self.connection.execute(
            "UPDATE outbox.effect SET"
            " open_since = open_since - %(s)s * interval '1 second',"
            " last_attempt_at = last_attempt_at - %(s)s * interval '1 second'"
            " WHERE open_since IS NOT NULL",
            {"s": seconds},
        )


class Enqueue(Protocol):
    """Leaves one job in a transaction of its own."""

    def __call__(
        self,
        key: str = ...,
        payload: dict[str, Any] | None = ...,
        *,
        topic: str = ...,
        **options: Any,
    ) -> int:
        """Return the job's id."""


#: Without TRUNCATE and the like, which make new files: these rows are few.
_EMPTY = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid();
DELETE FROM outbox.job;
DELETE FROM outbox.effect;
DELETE FROM outbox.ended_job;
DELETE FROM outbox.consumer;
SELECT setval('outbox.job_position', 1, false);
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace) THEN
        DROP SCHEMA public CASCADE;
        CREATE SCHEMA public;
    END IF;
END $$;
"""


@pytest.fixture(scope="session")
def one_database_url(databases: Databases) -> Iterator[str]:
    """A database for all tests of this folder: emptying one is ten times as fast as making one."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def database_url(one_database_url: str) -> str:
    """A database with the outbox schema and no rows. Whoever changes more makes one of its own."""
    with psycopg.connect(one_database_url, autocommit=True) as connection:
        connection.execute(_EMPTY)
    return one_database_url


@pytest.fixture
def own_database_url(databases: Databases) -> Iterator[str]:
    """A database that a test may alter as it likes."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits that are no settings."""
    for name, value in WAITS.items():
        monkeypatch.setattr(name, value)


@pytest.fixture
def tables(connection: psycopg.Connection) -> Tables:
    """A look at the tables of the test's database."""
    return Tables(connection)


@pytest.fixture
def enqueue(connection: psycopg.Connection) -> Enqueue:
    """Enqueue a job and commit."""

    def enqueue(
        key: str = "k", payload: dict[str, Any] | None = None, *, topic: str = TOPIC, **options: Any
    ) -> int:
        with connection.transaction():
            return Outbox().enqueue(
                connection,
                topic,
                {"n": 1} if payload is None else payload,
                effect_key=key,
                **options,
            )

    return enqueue


@pytest.fixture
def gateway() -> ScriptedGateway:
    """A provider that replays keys, and accepts what no script says otherwise about."""
    return ScriptedGateway()


@pytest.fixture
async def by_hand(database_url: str) -> AsyncIterator[ByHand]:
    """One consumer's parts."""
    async with ByHand(database_url) as parts:
        yield parts


@pytest.fixture
async def other(database_url: str) -> AsyncIterator[ByHand]:
    """Another consumer's parts."""
    async with ByHand(database_url, name="other") as parts:
        yield parts
