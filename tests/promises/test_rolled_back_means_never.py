"""Promise 2: rolled back means never: not the job, not a wake-up, not a counter.

A savepoint's rollback counts (case-29).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from outbox import statements
from tests.databases import Databases
from tests.producers import KINDS, TOPIC, Producer

AFTER = "(after)"


@pytest.fixture(scope="module")
def database_url(databases: Databases) -> Iterator[str]:
    """One database for this file: its tests are many, since each runs on every kind of caller."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture(autouse=True)
def orders(connection: psycopg.Connection[Any]) -> None:
    """The business tables of these tests, and no job."""
    connection.execute(
        "DROP TABLE IF EXISTS lines, orders;"
        "CREATE TABLE orders (id bigint PRIMARY KEY);"
        "CREATE TABLE lines (order_id bigint REFERENCES orders DEFERRABLE INITIALLY DEFERRED);"
        "DELETE FROM outbox.job; DELETE FROM outbox.consumer"
    )


@pytest.fixture(params=KINDS)
async def producer(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Producer]:
    """A caller of each kind that enqueue takes."""
    async with KINDS[request.param](database_url) as producer:
        yield producer


class Sleeper:
    """A consumer that sleeps and listens."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        connection.execute("LISTEN outbox_ready")
        connection.execute(
            statements.psycopg("note_consumer").encode(),
            {"claimed_by": "a:1:b", "topics": [TOPIC], "seen_seconds": 60, "sleep_seconds": 60},
        )

    def woken(self) -> list[str]:
        """What has woken it since the last time.

        Notifications come in the order of the commits: after its own one there is nothing to
        wait for.
        """
        with psycopg.connect(self._connection.info.dsn, autocommit=True) as other:
            other.execute("SELECT pg_notify('outbox_ready', %s)", [AFTER])
        found: list[str] = []
        for notification in self._connection.notifies(timeout=10):
            if notification.payload == AFTER:
                return found
            found.append(notification.payload)
        raise AssertionError("the own notification did not come")


@pytest.fixture
def sleeper(database_url: str) -> Iterator[Sleeper]:
    """A consumer that would be woken by a job."""
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield Sleeper(connection)


def visible(connection: psycopg.Connection[Any]) -> tuple[list[str], list[int]]:
    """The keys of all jobs, and the ids of all orders, as another session sees them."""
    keys = connection.execute("SELECT effect_key FROM outbox.job ORDER BY id").fetchall()
    ids = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
    return [key for (key,) in keys], [id_ for (id_,) in ids]


async def test_a_commit_leaves_the_order_one_job_and_one_wake_up(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """Order and job become visible together, and one wake-up comes with them."""
    await producer.execute("INSERT INTO orders VALUES (102)")
    job_id = await producer.enqueue("email-order-102")
    assert visible(connection) == ([], [])
    assert sleeper.woken() == []
    await producer.commit()
    assert visible(connection) == (["email-order-102"], [102])
    assert connection.execute("SELECT id FROM outbox.job").fetchall() == [(job_id,)]
    assert sleeper.woken() == [TOPIC]


async def test_a_rollback_leaves_neither_order_nor_job_nor_wake_up(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """Nothing of a transaction that was rolled back is ever seen by anybody."""
    await producer.execute("INSERT INTO orders VALUES (102)")
    await producer.enqueue("email-order-102")
    await producer.rollback()
    assert visible(connection) == ([], [])
    assert sleeper.woken() == []


async def test_a_savepoint_that_is_rolled_back_takes_its_jobs_along(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """The inner savepoint is rolled back, the outer transaction commits a job of its own."""
    await producer.execute("INSERT INTO orders VALUES (1)")
    await producer.enqueue("email-order-1")
    async with producer.savepoint(keep=False):
        await producer.execute("INSERT INTO orders VALUES (2)")
        await producer.enqueue("email-order-2", topic="other.topic")
    await producer.commit()
    assert visible(connection) == (["email-order-1"], [1])
    assert sleeper.woken() == [TOPIC]


async def test_a_savepoint_alone_wakes_nobody(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """A job whose only savepoint is rolled back leaves no wake-up when the outer one commits."""
    await producer.execute("INSERT INTO orders VALUES (1)")
    async with producer.savepoint(keep=False):
        await producer.enqueue("email-order-1")
    await producer.commit()
    assert visible(connection) == ([], [1])
    assert sleeper.woken() == []


async def test_the_rollback_of_the_outer_transaction_takes_released_savepoints_along(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """Releasing a savepoint commits nothing, and wakes nobody."""
    await producer.execute("INSERT INTO orders VALUES (1)")
    async with producer.savepoint(keep=True):
        await producer.enqueue("email-order-1")
    assert sleeper.woken() == []
    await producer.rollback()
    assert visible(connection) == ([], [])
    assert sleeper.woken() == []


async def test_a_released_savepoint_is_committed_with_the_outer_transaction(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """Jobs inside and outside of a released savepoint are each there once."""
    async with producer.savepoint(keep=True):
        await producer.enqueue("email-order-1")
        async with producer.savepoint(keep=False):
            await producer.enqueue("email-order-2")
        await producer.enqueue("email-order-3")
    await producer.enqueue("email-order-4")
    await producer.commit()
    keys, _ = visible(connection)
    assert keys == ["email-order-1", "email-order-3", "email-order-4"]
    assert sleeper.woken() == [TOPIC]


async def test_a_failed_order_leaves_no_job(
    producer: Producer, connection: psycopg.Connection[Any], sleeper: Sleeper
) -> None:
    """A constraint that fails after the enqueue takes the job along, also where it is deferred."""
    await producer.enqueue("email-order-102")
    await producer.execute("INSERT INTO lines VALUES (102)")
    with pytest.raises(Exception, match="violates foreign key"):
        await producer.commit()
    await producer.rollback()
    assert visible(connection) == ([], [])
    assert sleeper.woken() == []


async def test_a_killed_producer_leaves_no_job(
    connection: psycopg.Connection[Any], sleeper: Sleeper, database_url: str
) -> None:
    """The backend dies between the enqueue and the commit."""
    async with KINDS["Session on psycopg2"](database_url) as producer:
        await producer.enqueue("email-order-102")
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND state = 'idle in transaction'"
        )
        with pytest.raises(Exception, match="terminat"):
            await producer.commit()
        await producer.rollback()
    assert visible(connection) == ([], [])
    assert sleeper.woken() == []


async def test_no_counter_counts_what_was_rolled_back(
    producer: Producer, connection: psycopg.Connection[Any]
) -> None:
    """What people are shown counts committed jobs alone."""
    await producer.enqueue("email-order-1")
    async with producer.savepoint(keep=False):
        await producer.enqueue("email-order-2")
    await producer.commit()
    states = connection.execute("SELECT state, count(*) FROM outbox.job_status GROUP BY 1")
    assert states.fetchall() == [("ready", 1)]
