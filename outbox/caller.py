"""The caller's own connection, of whatever kind: one statement of ours in its transaction.

No library is imported that the caller doesn't use itself.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from outbox import statements
from outbox.errors import WrongConnection

if TYPE_CHECKING:
    import psycopg
    from sqlalchemy import Connection, TextClause
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SyncCaller = Session | scoped_session[Any] | Connection | psycopg.Connection[Any]
    AsyncCaller = (
        AsyncSession | async_scoped_session[Any] | AsyncConnection | psycopg.AsyncConnection[Any]
    )

#: libpq's transaction status, the same numbers in psycopg and psycopg2.
_IDLE, _ACTIVE = 0, 1
#: The first column of each row: the id of a job.
Ids = list[int]


@dataclass(frozen=True, slots=True)
class Insert:
    """A statement that returns ids, to be run once for each of ``parameters``; ``count`` ids come
    of it in all.
    """

    statement: str
    parameters: Iterable[Mapping[str, object]]
    count: int

    @property
    def query(self) -> bytes:
        """For psycopg."""
        return statements.psycopg(self.statement).encode()


def insert(caller: object, wish: Insert) -> Ids | Awaitable[Ids]:
    """Run it in the transaction of ``caller``; awaitable where the caller is.

    Raises:
        WrongConnection: no transaction to join (autocommit), or an object of another kind.
    """
    for module, names, run in _KINDS:
        library = sys.modules.get(module)
        if library and isinstance(caller, tuple(getattr(library, name) for name in names)):
            return run(caller, wish)
    raise WrongConnection(
        "enqueue takes a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, or a "
        f"psycopg connection, not {type(caller).__module__}.{type(caller).__qualname__}"
    )


def _on_psycopg(connection: psycopg.Connection[Any], wish: Insert) -> Ids:
    import psycopg
    from psycopg.rows import tuple_row

    if _pipelined(connection):
        # A nested pipeline sends what is queued: only then is it known whether a BEGIN was in it.
        with connection.pipeline():
            pass
    _refuse_autocommit(connection)
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        rows: list[Any] = []
        for given in wish.parameters:
            rows += cursor.execute(wish.query, given).fetchall()
    return _ids(rows, wish)


async def _on_async_psycopg(connection: psycopg.AsyncConnection[Any], wish: Insert) -> Ids:
    import psycopg
    from psycopg.rows import tuple_row

    if _pipelined(connection):
        async with connection.pipeline():
            pass
    _refuse_autocommit(connection)
    async with psycopg.AsyncCursor(connection, row_factory=tuple_row) as cursor:
        rows: list[Any] = []
        for given in wish.parameters:
            await cursor.execute(wish.query, given)
            rows += await cursor.fetchall()
    return _ids(rows, wish)


def _on_sqlalchemy(connection: Connection, wish: Insert) -> Ids:
    _refuse_other_database(connection.dialect.name)
    _refuse_autocommit(connection.connection.dbapi_connection)
    query = _sqlalchemy_text(wish.statement)
    rows: list[Any] = []
    for given in wish.parameters:
        rows += connection.execute(query, given).fetchall()
    return _ids(rows, wish)


async def _on_async_sqlalchemy(connection: AsyncConnection, wish: Insert) -> Ids:
    _refuse_other_database(connection.dialect.name)
    raw = await connection.get_raw_connection()
    _refuse_autocommit(raw.dbapi_connection)
    query = _sqlalchemy_text(wish.statement)
    rows: list[Any] = []
    for given in wish.parameters:
        rows += (await connection.execute(query, given)).fetchall()
    return _ids(rows, wish)


async def _on_async_session(session: AsyncSession | async_scoped_session[Any], wish: Insert) -> Ids:
    return await _on_async_sqlalchemy(await session.connection(), wish)


def _on_session(session: Session | scoped_session[Any], wish: Insert) -> Ids:
    return _on_sqlalchemy(session.connection(), wish)


@cache
def _sqlalchemy_text(statement: str) -> TextClause:
    from sqlalchemy import text

    return text(statements.text(statement))


#: Who inserts for which classes of which module.
_KINDS: tuple[tuple[str, tuple[str, ...], Callable[..., Ids | Awaitable[Ids]]], ...] = (
    ("psycopg", ("Connection",), _on_psycopg),
    ("psycopg", ("AsyncConnection",), _on_async_psycopg),
    ("sqlalchemy.orm", ("Session", "scoped_session"), _on_session),
    ("sqlalchemy.engine", ("Connection",), _on_sqlalchemy),
    ("sqlalchemy.ext.asyncio", ("AsyncSession", "async_scoped_session"), _on_async_session),
    ("sqlalchemy.ext.asyncio", ("AsyncConnection",), _on_async_sqlalchemy),
)


def _ids(rows: Sequence[Any], wish: Insert) -> Ids:
    if len(rows) != wish.count:
        raise WrongConnection(
            f"the INSERT of {wish.count} jobs returned {len(rows)} rows; is this really PostgreSQL?"
        )
    return [int(row[0]) for row in rows]


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
