"""A person's connection: each question or decision is one short READ COMMITTED transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg import IsolationLevel
from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row

from outbox import statements
from outbox.connection import host_of, libpq_url, reason
from outbox.errors import DatabaseUnavailable, OutboxError, SchemaError

Row = TypeVar("Row")

#: A person waits this long for one answer; counts over a very large table may take longer.
ANSWER_SECONDS = 10.0
#: A consumer holds a row's lock for milliseconds; whoever holds one for longer is stuck.
LOCK_SECONDS = 5.0
_CONNECT: dict[str, Any] = {
    "application_name": "outbox",
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
_TABLES_MISSING = {"42P01", "3F000", "42703"}
_READ_ONLY = {"25006", "0A000"}


class Operator:
    """Asks and decides on an open connection, which it puts into autocommit between its turns."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        connection.autocommit = True
        # Whatever role and database default to: a decision locks in one statement and has to see
        # in the next what was committed while it waited.
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        connection.read_only = False
        self.connection = connection

    @contextmanager
    def turn(self, seconds: float = ANSWER_SECONDS) -> Iterator[None]:
        """One transaction, whose statements may take ``seconds`` each.

        The limits are set inside it, so that nothing leaks to others behind a pooler.

        Raises:
            DatabaseUnavailable: no answer in time, a lock that was not let go, or the connection
                broke; nothing was changed unless the connection broke at the very end.
            SchemaError: the tables are not there.
            OutboxError: the database refused; the message is one line and holds no password.
        """
        with explained(seconds), self.connection.transaction():
            self.connection.execute(
                "SELECT set_config('statement_timeout', %s, true),"
                " set_config('lock_timeout', %s, true)",
                (f"{int(seconds * 1000)}ms", f"{int(min(seconds, LOCK_SECONDS) * 1000)}ms"),
            )
            yield

    def fetch(self, kind: type[Row], statement: str, /, **parameters: object) -> list[Row]:
        """Run ``sql/<statement>.sql`` inside a turn and return its rows."""
        with self.connection.cursor(row_factory=class_row(kind)) as cursor:
            cursor.execute(statements.psycopg(statement).encode(), parameters)
            return cursor.fetchall()

    def wake(self, topics: set[str]) -> None:
        """Let consumers of these topics look, once this turn has committed."""
        if topics:
            parameters = {"topics": sorted(topics)}
            self.connection.execute(statements.psycopg("notify_consumers").encode(), parameters)


@contextmanager
def connect(url: str) -> Iterator[Operator]:
    """Connect to the database, and close the connection at the end.

    Raises:
        ConfigurationError: it is no PostgreSQL URL.
        DatabaseUnavailable: no connection; the message holds neither the URL nor a password.
    """
    try:
        connection = psycopg.connect(make_conninfo(libpq_url(url), **_CONNECT))
    except psycopg.Error as error:
        why = reason(error).removeprefix("connection failed: ")
        raise DatabaseUnavailable(f"can't connect to the database {host_of(url)}: {why}") from None
    with connection:
        yield Operator(connection)


@contextmanager
def explained(seconds: float = ANSWER_SECONDS) -> Iterator[None]:
    """Turn the database's errors into one line for a person.

    Raises:
        DatabaseUnavailable: it says nothing about the statement: time, locks, the connection.
        SchemaError: the tables are not there.
        OutboxError: the database refused.
    """
    try:
        yield
    except psycopg.Error as error:
        raise _explanation(error, seconds) from error


def _explanation(error: psycopg.Error, seconds: float) -> OutboxError:
    state = error.sqlstate or ""
    if state in _TABLES_MISSING:
        return SchemaError("the outbox schema is not in this database; run: outbox migrate")
    if state == "42501":
        return OutboxError(
            f"the database role may not do this: {reason(error)}; see: outbox doctor"
        )
    if state in _READ_ONLY:
        return OutboxError(
            f"this server is a read-only replica ({reason(error)}); name the primary"
        )
    if state == "57014":
        return DatabaseUnavailable(
            f"no answer within {seconds:g} s or the role's own limit (a very large table, a busy "
            "server?); nothing was changed"
        )
    if state == "55P03":
        return DatabaseUnavailable(
            f"another session has held a lock on these rows for {LOCK_SECONDS:g} s; nothing was "
            "changed, try again (outbox doctor names long transactions)"
        )
    if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return DatabaseUnavailable(f"the database did not answer: {reason(error)}")
    return OutboxError(f"the database refused: {reason(error)} (SQLSTATE {state or 'unknown'})")
