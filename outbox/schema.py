"""The schema's versions: SQL files under ``migrations/``, applied in order, checked afterwards."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import psycopg

from outbox.connection import libpq_url
from outbox.errors import DatabaseUnavailable, SchemaError

#: DDL waits this long for a lock, and everybody else waits behind it for as long.
LOCK_SECONDS = 3
_ADVISORY = "hashtextextended('outbox.migrate', 0)"


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
    found = []
    for file in files("outbox").joinpath("migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", file.name):
            found.append(Migration(int(match[1]), match[2], file.read_text("utf-8")))
    return tuple(sorted(found, key=lambda step: step.version))


def migrate(url: str) -> list[Migration]:
    """Bring the schema to this code's version and return the steps that were applied.

    Two at once: one waits for the other. Each step is one transaction.

    Raises:
        SchemaError: a newer schema, a changed step, or a reader that held a lock for too long.
        DatabaseUnavailable: no connection.
    """
    with _connected(url) as connection:
        connection.execute(f"SELECT pg_advisory_lock({_ADVISORY})")
        _prepare(connection)
        applied = [step for step in _missing(connection) if _apply(connection, step)]
        check(connection)
    return applied


def check(connection: psycopg.Connection[Any]) -> None:
    """Make sure that the database's schema is the one that this code works with.

    Raises:
        SchemaError: what is wrong, and the command that mends it.
    """
    if _missing(connection):
        raise SchemaError("the outbox schema is missing or older than this code; run: outbox migrate")
    if problems := _differences(connection):
        raise SchemaError("the outbox schema is not as migrated: " + "; ".join(problems))


def check_url(url: str) -> None:
    """``check`` on a connection of its own.

    Raises:
        SchemaError: see ``check``.
        DatabaseUnavailable: no connection.
    """
    with _connected(url) as connection:
        check(connection)


def _connected(url: str) -> psycopg.Connection[Any]:
    try:
        return psycopg.connect(
            libpq_url(url), autocommit=True, connect_timeout=10, application_name="outbox migrate"
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(f"can't connect to the database: {reason(error)}") from None


def reason(error: psycopg.Error) -> str:
    """Return the server's or the client's first line, which holds no password."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _prepare(connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        connection.execute("CREATE SCHEMA IF NOT EXISTS outbox")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS outbox.schema_version (version integer PRIMARY KEY,"
            " name text NOT NULL, checksum text NOT NULL,"
            " applied_at timestamptz NOT NULL DEFAULT clock_timestamp())"
        )


def _missing(connection: psycopg.Connection[Any]) -> list[Migration]:
    exists = connection.execute("SELECT to_regclass('outbox.schema_version') IS NOT NULL").fetchone()
    if not exists or not exists[0]:
        return list(migrations())
    there = dict(connection.execute("SELECT version, checksum FROM outbox.schema_version").fetchall())
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
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'")
            connection.execute(step.sql.encode())
            connection.execute(
                "INSERT INTO outbox.schema_version (version, name, checksum) VALUES (%s, %s, %s)",
                (step.version, step.name, step.checksum),
            )
    except psycopg.errors.LockNotAvailable:
        raise SchemaError(
            f"migration {step.version} gave up after {LOCK_SECONDS} s: another session holds a lock on "
            "the outbox tables (a long reader, a dump?); nothing was changed, run it again later"
        ) from None
    return True


#: What the hot statements rely on, beyond the tables' being there.
_EXPECTED = {
    "table outbox.job": "SELECT to_regclass('outbox.job') IS NOT NULL",
    "table outbox.ended_job": "SELECT to_regclass('outbox.ended_job') IS NOT NULL",
    "table outbox.effect": "SELECT to_regclass('outbox.effect') IS NOT NULL",
    "table outbox.consumer": "SELECT to_regclass('outbox.consumer') IS NOT NULL",
    "view outbox.job_status": "SELECT to_regclass('outbox.job_status') IS NOT NULL",
    "sequence outbox.job_position": "SELECT to_regclass('outbox.job_position') IS NOT NULL",
    "the ledger's primary key": (
        "SELECT count(*) = 1 FROM pg_index WHERE indrelid = to_regclass('outbox.effect') AND indisprimary AND indisvalid"
    ),
    "index outbox.job_ready": "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('outbox.job_ready')",
    "index outbox.job_due": "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('outbox.job_due')",
    "index outbox.job_ordering_head": (
        "SELECT indisvalid AND indisunique FROM pg_index WHERE indexrelid = to_regclass('outbox.job_ordering_head')"
    ),
}


def _differences(connection: psycopg.Connection[Any]) -> list[str]:
    missing = []
    for what, query in _EXPECTED.items():
        row = connection.execute(query.encode()).fetchone()
        if row is None or row[0] is not True:
            missing.append(f"{what} is missing or invalid")
    return missing
