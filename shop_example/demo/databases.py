"""The demo's own databases: made fresh for each run, and kept for looking at afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from outbox import DatabaseUnavailable, schema
from outbox.connection import libpq_url, reason
from shop_example.database import engine_of, with_database
from shop_example.tables import create_tables


@contextmanager
def server(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Be the only demo on a database server, and yield a connection to it.

    Raises:
        DatabaseUnavailable: no connection, or another demo runs there.
    """
    try:
        connection = psycopg.connect(libpq_url(url), autocommit=True, connect_timeout=10)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"can't connect to the database: {reason(error)}") from None
    with connection:
        row = connection.execute(
            "SELECT pg_try_advisory_lock(hashtextextended('outbox.demo', 0))"
        ).fetchone()
        if row is None or not row[0]:
            raise DatabaseUnavailable(
                "another demo is running on this database server; wait for it"
            )
        yield connection


def fresh(connection: psycopg.Connection[Any], url: str, name: str) -> str:
    """Make a database anew, with the outbox and the shop in it, and return its URL.

    Sessions of consumers that an earlier demo has left behind are ended with the old one.
    """
    try:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')
    except psycopg.Error as error:
        raise DatabaseUnavailable(f"can't make the database {name}: {reason(error)}") from None
    new = with_database(url, name)
    schema.migrate(new)
    engine = engine_of(new)
    create_tables(engine)
    engine.dispose()
    return new


def clock_ahead_seconds(connection: psycopg.Connection[Any], now: float) -> float:
    """How far the server's clock is ahead of ours, which says ``now``."""
    row = connection.execute("SELECT extract(epoch FROM clock_timestamp())::float8").fetchone()
    return float(row[0]) - now if row else 0.0
