"""Enqueueing: one INSERT in the caller's transaction, on whatever connection it is given.

It never commits, never blocks on another transaction, and never fails on a key that is there
already: the second job of a key is stored too, and ends as a duplicate.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any, overload

from outbox import payload as payloads
from outbox import statements
from outbox.errors import InvalidJob, WrongConnection

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SyncCaller = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
    AsyncCaller = (
        AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
    )

_EFFECT_KEY = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
#: As pydantic reads them, so that one setting means the same to producers and consumers.
_OFF = {"0", "f", "false", "n", "no", "off"}
#: libpq's transaction status, the same numbers in psycopg and psycopg2.
_IDLE, _ACTIVE = 0, 1


class Outbox:
    """Where a service leaves its jobs.

    Args:
        notify: whether an enqueue may carry a wake-up for consumers that sleep (``NOTIFY``). Off,
            they find the job at their next poll. PREPARE TRANSACTION needs it off. Unset: the
            environment variable ``OUTBOX_NOTIFY``, else on.
    """

    def __init__(self, *, notify: bool | None = None) -> None:
        self._notify = (
            os.environ.get("OUTBOX_NOTIFY", "").lower() not in _OFF if notify is None else notify
        )

    @overload
    def enqueue(
        self,
        caller: SyncCaller,
        topic: str,
        payload: Mapping[str, Any],
        *,
        effect_key: str,
        available_at: datetime | None = ...,
        expires_at: datetime | None = ...,
        priority: int = ...,
        ordering_key: str | None = ...,
        max_attempts: int | None = ...,
    ) -> int: ...

    @overload
    def enqueue(
        self,
        caller: AsyncCaller,
        topic: str,
        payload: Mapping[str, Any],
        *,
        effect_key: str,
        available_at: datetime | None = ...,
        expires_at: datetime | None = ...,
        priority: int = ...,
        ordering_key: str | None = ...,
        max_attempts: int | None = ...,
    ) -> Awaitable[int]: ...

    def enqueue(
        self,
        caller: SyncCaller | AsyncCaller,
        topic: str,
        payload: Mapping[str, Any],
        *,
        effect_key: str,
        available_at: datetime | None = None,
        expires_at: datetime | None = None,
        priority: int = 0,
        ordering_key: str | None = None,
        max_attempts: int | None = None,
    ) -> int | Awaitable[int]:
        """Write a job into the caller's transaction; returns its id (awaitable for async callers).

        Args:
            caller: a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection on any driver,
                or a psycopg connection, sync or async; not in autocommit.
            topic: what kind of job: ``email.order_confirmation``.
            payload: JSON; ids and what the text needs. At most 256 KiB.
            effect_key: names the effect for the business: ``email-order-102``. What is one effect
                is one key; a second, wanted e-mail has a revision in its key.
            available_at: not before this moment (with a time zone).
            expires_at: past it and not yet requested, the job ends cancelled (with a time zone).
            priority: lower numbers first.
            ordering_key: jobs with the same one run one at a time, in order.
            max_attempts: instead of the consumers' default.

        Raises:
            InvalidJob: an argument is wrong; raised before any SQL, the transaction stays usable.
            WrongConnection: no transaction to join (autocommit), or an object of another kind.
        """
        text, fingerprint = payloads.encode(payload)
        row: dict[str, object] = {
            "topic": _match(_TOPIC, topic, "topic"),
            "effect_key": _match(_EFFECT_KEY, effect_key, "effect_key"),
            "payload": text,
            "payload_fingerprint": fingerprint,
            "available_at": _moment(available_at, "available_at"),
            "expires_at": _moment(expires_at, "expires_at"),
            "priority": _number(priority, "priority", -32_768, 32_767),
            "ordering_key": _ordering_key(ordering_key),
            "max_attempts": _number(max_attempts, "max_attempts", 1, 1_000_000),
            "notify": self._notify,
        }
        if available_at is not None and expires_at is not None and expires_at <= available_at:
            raise InvalidJob("expires_at", "is not after available_at: the job could never run")
        return _insert(caller, row)


def _on_psycopg(connection: psycopg.Connection[Any], row: dict[str, object]) -> int:
    import psycopg
    from psycopg.rows import tuple_row

    if _pipelined(connection):
        # A nested pipeline sends what is queued: only then is it known whether a BEGIN was in it.
        with connection.pipeline():
            pass
    _refuse_autocommit(connection)
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        found = cursor.execute(statements.psycopg("insert_job").encode(), row).fetchone()
    return _id(found)


async def _on_async_psycopg(
    connection: psycopg.AsyncConnection[Any], row: dict[str, object]
) -> int:
    import psycopg
    from psycopg.rows import tuple_row

    if _pipelined(connection):
        async with connection.pipeline():
            pass
    _refuse_autocommit(connection)
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statements.psycopg("insert_job").encode(), row)
        return _id(await cursor.fetchone())


def _on_sqlalchemy(connection: Connection, row: dict[str, object]) -> int:
    _refuse_other_database(connection.dialect.name)
    _refuse_autocommit(connection.connection.dbapi_connection)
    return _id(connection.execute(_sqlalchemy_text(), row).fetchone())


async def _on_async_sqlalchemy(connection: AsyncConnection, row: dict[str, object]) -> int:
    _refuse_other_database(connection.dialect.name)
    raw = await connection.get_raw_connection()
    _refuse_autocommit(raw.dbapi_connection)
    return _id((await connection.execute(_sqlalchemy_text(), row)).fetchone())


async def _on_async_session(
    session: AsyncSession | async_scoped_session[Any], row: dict[str, object]
) -> int:
    return await _on_async_sqlalchemy(await session.connection(), row)


def _on_session(session: Session | scoped_session[Any], row: dict[str, object]) -> int:
    return _on_sqlalchemy(session.connection(), row)


@cache
def _sqlalchemy_text() -> TextClause:
    from sqlalchemy import text

    return text(statements.text("insert_job"))


#: Who inserts for which classes of which module.
_KINDS: tuple[tuple[str, tuple[str, ...], Callable[..., int | Awaitable[int]]], ...] = (
    ("psycopg", ("Connection",), _on_psycopg),
    ("psycopg", ("AsyncConnection",), _on_async_psycopg),
    ("sqlalchemy.orm", ("Session", "scoped_session"), _on_session),
    ("sqlalchemy.engine", ("Connection",), _on_sqlalchemy),
    ("sqlalchemy.ext.asyncio", ("AsyncSession", "async_scoped_session"), _on_async_session),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection",), _on_async_sqlalchemy),
)


def _insert(caller: object, row: dict[str, object]) -> int | Awaitable[int]:
    """Dispatch on the kind of connection, importing no library that the caller doesn't use."""
    for module, names, insert in _KINDS:
        library = sys.modules.get(module)
        if library and isinstance(caller, tuple(getattr(library, name) for name in names)):
            return insert(caller, row)
    raise WrongConnection(
        "enqueue takes a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, or a "
        f"psycopg connection, not {type(caller).__module__}.{type(caller).__qualname__}"
    )


def _id(row: Any) -> int:
    if row is None:
        raise WrongConnection("the INSERT returned no row; is this really PostgreSQL?")
    return int(row[0])


def _pipelined(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether an autocommit connection has statements under way, a BEGIN perhaps among them."""
    return connection.autocommit and connection.info.transaction_status == _ACTIVE


def _refuse_other_database(dialect: str) -> None:
    if dialect != "postgresql":
        raise WrongConnection(
            f"enqueue needs a connection to PostgreSQL, and this one is to {dialect}; "
            "with several binds pass session.connection(bind_arguments=...)"
        )


def _refuse_autocommit(driver_connection: Any) -> None:
    """Ask the driver itself: SQLAlchemy's AUTOCOMMIT says that it is in a transaction."""
    if not getattr(driver_connection, "autocommit", False):
        return
    info = getattr(driver_connection, "info", None)
    # A psycopg connection in autocommit may still be inside a ``with connection.transaction()``.
    if getattr(info, "transaction_status", _IDLE) not in {_IDLE, _ACTIVE}:
        return
    raise WrongConnection(
        "this connection is in autocommit mode: there is no transaction that the job could share "
        "with your rows; begin one (psycopg: with connection.transaction(); SQLAlchemy: another "
        "isolation level)"
    )


def _match(pattern: re.Pattern[str], value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidJob(field, f"must be text, not {type(value).__name__}")
    if not pattern.fullmatch(value):
        short = len(value) <= 60 and value.isascii() and "@" not in value
        shown = repr(value) if short else f"text of {len(value)} characters"
        raise InvalidJob(field, f"{shown} does not match {pattern.pattern}")
    return value


def _moment(value: object, field: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidJob(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidJob(
            field, "has no time zone; pass e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    try:
        # One zone for all drivers: they differ in what they make of odd ones.
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidJob(field, "lies outside the years 1 to 9999 in UTC") from None


def _number(value: object, field: str, lowest: int, highest: int) -> int | None:
    if value is None and field == "max_attempts":
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(field, f"must be a whole number, not {type(value).__name__}")
    if not lowest <= value <= highest:
        raise InvalidJob(field, f"{value} is not between {lowest} and {highest}")
    return value


def _ordering_key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidJob("ordering_key", f"must be text, not {type(value).__name__}")
    if not 1 <= len(value) <= 200:
        raise InvalidJob("ordering_key", f"{len(value)} characters; between 1 and 200 are allowed")
    payloads.check_text(value, "ordering_key")
    return value
