"""The tests' own ground: databases that nobody shares, and no leftovers of killed runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

if TYPE_CHECKING:
    from tests.databases import Databases


def names(databases: Databases) -> set[str]:
    """Every database of the server."""
    return {name for (name,) in databases.admin.execute("SELECT datname FROM pg_database")}


def test_each_test_has_a_database_with_the_schema_to_itself(
    databases: Databases, database_url: str, connection: psycopg.Connection
) -> None:
    """It holds the outbox's tables and no rows; another one has another name."""
    row = connection.execute("SELECT count(*), to_regclass('outbox.effect') FROM outbox.job")
    assert row.fetchone() == (0, "outbox.effect")
    other = databases.create_migrated()
    assert other != database_url
    databases.drop(other)


def test_an_empty_database_has_no_schema(empty_database_url: str) -> None:
    """What a migration is tried on."""
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT to_regnamespace('outbox')").fetchone() == (None,)


async def test_the_async_connection_reaches_the_same_database(
    connection: psycopg.Connection, aconnection: psycopg.AsyncConnection
) -> None:
    """Both are autocommit, so that each sees at once what the other has done."""
    connection.execute("CREATE TABLE seen ()")
    cursor = await aconnection.execute("SELECT count(*) FROM seen")
    assert await cursor.fetchone() == (0,)


def test_dropping_ends_the_sessions_that_a_test_forgot(databases: Databases) -> None:
    """A connection left open delays no other test."""
    url = databases.create_empty()
    with psycopg.connect(url) as forgotten:
        databases.drop(url)
        assert not forgotten.closed
    assert url.rpartition("/")[2].partition("?")[0] not in names(databases)


def test_what_a_killed_run_left_is_swept_and_what_lives_is_kept(databases: Databases) -> None:
    """A run lives while a session holds the lock of its name, whatever its process id."""
    dead, alive = "outbox_test_1_dead_1", "outbox_test_1_alive_1"
    for name in (dead, alive):
        databases.admin.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(databases.url, autocommit=True) as other:
        lock = "SELECT pg_advisory_lock(hashtextextended('outbox_test_1_alive', 0))"
        other.execute(lock)
        databases.sweep()
        assert {dead, alive} & names(databases) == {alive}
    databases.sweep()
    assert alive not in names(databases)
