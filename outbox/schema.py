"""The schema's versions: SQL files under ``migrations/``, applied in order, checked afterwards."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg
from psycopg import IsolationLevel

from outbox.connection import libpq_url, passing, reason, refused_for_good
from outbox.errors import ConfigurationError, DatabaseUnavailable, SchemaError

#: DDL waits this long for a lock, and everybody else waits behind it for as long.
LOCK_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """The step's fingerprint, kept beside its version."""
        return hashlib.sha256(self.sql.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all steps that this code knows, in order."""
    named = (
        (re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name), file)
        for file in files("outbox").joinpath("migrations").iterdir()
    )
    steps = [Migration(int(m[1]), m[2], file.read_text("utf-8")) for m, file in named if m]
    return tuple(sorted(steps, key=lambda step: step.version))


def migrate(url: str) -> list[Migration]:
    """Bring the schema to this code's version and return the steps that were applied.

    Two at once: one waits for the other. Each step is one transaction.

    Raises:
        SchemaError: a newer schema, a changed step, a reader that held a lock for too long, or a
            step that the database refused.
        DatabaseUnavailable: no connection, or it broke.
    """
    with _connected(url) as connection:
        applied = [step for step in _missing(connection) if _apply(connection, step)]
        check(connection)
    return applied


def check(connection: psycopg.Connection[Any]) -> None:
    """Make sure that the database's schema is the one that this code works with.

    Raises:
        SchemaError: what is wrong, and the command that mends it.
    """
    if _missing(connection):
        raise SchemaError(
            "the outbox schema is missing or older than this code; run: outbox migrate"
        )
    if problems := _differences(connection):
        raise SchemaError("the outbox schema is not as migrated: " + "; ".join(problems))


def check_url(url: str) -> None:
    """``check`` on a connection of its own.

    Raises:
        SchemaError: see ``check``.
        ConfigurationError: the server is there, and refuses this database, user or password.
        DatabaseUnavailable: no connection.
    """
    with _connected(url) as connection:
        check(connection)


@contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        connection = psycopg.connect(
            libpq_url(url), autocommit=True, connect_timeout=10, application_name="outbox migrate"
        )
    except psycopg.OperationalError as error:
        if refused_for_good(error):
            raise ConfigurationError(f"OUTBOX_DATABASE_URL: {reason(error)}") from None
        raise DatabaseUnavailable(f"can't connect to the database: {reason(error)}") from None
    # Under another level a step that has waited for its turn would not see what was done meanwhile.
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.read_only = False
    with connection:
        try:
            yield connection
        except psycopg.Error as error:
            if isinstance(error, psycopg.OperationalError) or passing(error):
                raise DatabaseUnavailable(f"{reason(error)}; run it again") from error
            raise SchemaError(f"the database refused: {reason(error)}") from error


def _prepare(connection: psycopg.Connection[Any]) -> None:
    """Make the schema and its own table, in a transaction that has its turn.

    The schema may have been made by somebody with more rights: IF NOT EXISTS would ask for them.
    """
    row = connection.execute("SELECT to_regnamespace('outbox') IS NULL").fetchone()
    if row and row[0]:
        connection.execute("CREATE SCHEMA outbox")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS outbox.schema_version (version integer PRIMARY KEY,"
        " name text NOT NULL, checksum text NOT NULL,"
        " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
    )


def _missing(connection: psycopg.Connection[Any]) -> list[Migration]:
    # Not to_regclass: it answers from a cache, which a transaction that has waited for its turn
    # does not renew before it opens a table.
    exists = connection.execute(
        "SELECT FROM pg_tables WHERE schemaname = 'outbox' AND tablename = 'schema_version'"
    ).fetchone()
    if exists is None:
        return list(migrations())
    there = dict(
        connection.execute("SELECT version, checksum FROM outbox.schema_version").fetchall()
    )
    known = {step.version: step for step in migrations()}
    if newer := set(there) - set(known):
        raise SchemaError(
            f"the outbox schema has version {max(newer)}, this code knows up to {max(known)}: "
            "update this program before it touches the database"
        )
    for version, checksum in there.items():
        if known[version].checksum != checksum:
            raise SchemaError(f"migration {version} was applied in another form than this code's")
    return [step for version, step in sorted(known.items()) if version not in there]


def _apply(connection: psycopg.Connection[Any], step: Migration) -> bool:
    """Apply a step in a transaction of its own; False when another migrate has done so meanwhile.

    The lock that makes them take turns is the transaction's: one of the session would stay behind
    at a pooler. The role's own timeouts are meant for other statements.
    """
    try:
        with connection.transaction():
            connection.execute("SET LOCAL statement_timeout = 0")
            connection.execute("SET LOCAL lock_timeout = 0")
            connection.execute(
                "SELECT pg_advisory_xact_lock(hashtextextended('outbox.migrate', 0))"
            )
            if step not in _missing(connection):
                return False
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            _prepare(connection)
            connection.execute(step.sql.encode())
            connection.execute(
                "INSERT INTO outbox.schema_version (version, name, checksum) VALUES (%s, %s, %s)",
                (step.version, step.name, step.checksum),
            )
    except psycopg.errors.LockNotAvailable:
        raise SchemaError(
            f"migration {step.version} gave up after {LOCK_SECONDS} s: another session holds a "
            "lock on the outbox tables (a long reader, a dump?); nothing was changed, run it again "
            "later"
        ) from None
    return True


#: What the statements rely on. (An index that is missing is not missed by any of them: it is only
#: felt, or lets two heads of one ordering key in.)
_RELATIONS = ("job", "ended_job", "effect", "consumer", "job_status", "job_position")
#: And whether it has to be unique.
_INDEXES = {
    "job_pkey": True,
    "job_ready": False,
    "job_due": False,
    "job_blocked": False,
    "job_held": False,
    "job_ordering_head": True,
    "ended_job_pkey": True,
    "ended_job_by_end": False,
    "effect_pkey": True,
    "consumer_pkey": True,
}


def _differences(connection: psycopg.Connection[Any]) -> list[str]:
    relations = connection.execute(
        "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass('outbox.' || name) IS NULL",
        (list(_RELATIONS),),
    ).fetchall()
    indexes = connection.execute(
        "SELECT name FROM unnest(%s::text[], %s::boolean[]) AS wanted (name, is_unique)"
        " LEFT JOIN pg_index ON indexrelid = to_regclass('outbox.' || name)"
        " WHERE (indisvalid AND indisunique = is_unique) IS NOT TRUE",
        (list(_INDEXES), list(_INDEXES.values())),
    ).fetchall()
    return [
        *(f"outbox.{name} is missing" for (name,) in relations),
        *(f"index outbox.{name} is missing or invalid" for (name,) in indexes),
    ]
