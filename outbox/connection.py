"""One PostgreSQL connection of a consumer: it reconnects; each call is one short transaction."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping
from contextlib import nullcontext
from types import TracebackType
from typing import Any, Self, TypeVar

import psycopg
from psycopg import AsyncConnection, AsyncCursor, IsolationLevel
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import AsyncRowFactory, RowMaker, args_row, class_row

from outbox import statements
from outbox.errors import ConfigurationError, DatabaseUnavailable, SchemaError

_log = logging.getLogger(__name__)
Row = TypeVar("Row")

#: A statement of ours takes milliseconds; one without an answer for so long has lost its server.
STATEMENT_SECONDS_MAX = 30.0
#: On the consumer's own connections: a dead peer is noticed in about 25 s, and a transaction that a
#: stopped consumer left open is ended by the server.
_KEEPALIVE = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
#: SQLSTATE classes and codes that say nothing about the statement: the same one may pass later.
#: Of statements that have run before, 0A000 ("not supported") says that a migration went by (the
#: next try plans anew), or that the server is a standby now (the next one may find the primary).
_PASSING = re.compile(
    r"08...|53...|57...|58000|58030|40001|40P01|55P03|25P03|25P04|25006|26000|42P05|0A000",
    re.IGNORECASE,
)


def libpq_url(url: str) -> str:
    """Return a URL as libpq reads it: SQLAlchemy's ``postgresql+driver://`` without the driver.

    Raises:
        ConfigurationError: it is no PostgreSQL URL; the message never holds the URL, which may
            carry a password.
    """
    plain = re.sub(r"^postgres(?:ql)?(?:\+[a-z0-9_]+)?://", "postgresql://", url.strip())
    if not plain.startswith("postgresql://"):
        raise ConfigurationError(
            "OUTBOX_DATABASE_URL: not a PostgreSQL URL; it looks like "
            "postgresql://user@host:5432/database (postgresql+driver:// is fine too)"
        )
    if not _readable(plain):
        raise ConfigurationError(
            "OUTBOX_DATABASE_URL: PostgreSQL's client can't read this URL; special characters in "
            "user, password or path must be percent-encoded"
        )
    return plain


def _readable(url: str) -> bool:
    """Whether libpq takes the URL apart as it was meant.

    A bare slash in a password would make the rest of it a port or a database name, to be shown.
    """
    try:
        port = conninfo_to_dict(url).get("port") or ""
    except psycopg.ProgrammingError:
        return False
    path = url.removeprefix("postgresql://").partition("/")[2].partition("?")[0]
    return re.fullmatch(r"[\d,]*", str(port)) is not None and "@" not in path


def host_of(url: str) -> str:
    """Return where a database URL points, without user and password, for start lines and errors."""
    parts = conninfo_to_dict(libpq_url(url))
    host = parts.get("host") or parts.get("hostaddr") or "local socket"
    port = f":{parts['port']}" if parts.get("port") else ""
    return f"{host}{port}/{parts.get('dbname') or ''}"


def reason(error: psycopg.Error) -> str:
    """Return the server's or the client's first line, which holds no password."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def refused_for_good(error: psycopg.OperationalError) -> bool:
    """Whether a server answered a connection with a no that waiting doesn't change.

    libpq hands on no SQLSTATE of a refused connection, only the server's text.
    """
    text = str(error)
    return "FATAL:" in text and any(word in text for word in _LASTING_REFUSALS)


def passing(error: psycopg.Error) -> bool:
    """Say whether an error speaks of the moment (connection, locks, shutdown) only."""
    if error.sqlstate is None:
        return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return _PASSING.fullmatch(error.sqlstate) is not None


#: What a person has to mend. Of anything else (a server that starts, stops, recovers or is full, a
#: database closed for maintenance) nobody can say that it won't let one in later.
_LASTING_REFUSALS = (
    "authentication failed",
    "does not exist",
    "no pg_hba.conf entry",
    "rejects connection",
    "not permitted to log in",
    "permission denied",
)


class Connection:
    """A named connection that is opened at first use and again after it broke."""

    def __init__(self, url: str, name: str) -> None:
        self._conninfo = make_conninfo(libpq_url(url), application_name=name, **_KEEPALIVE)
        self._raw: AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self._default_fits = False
        self.broken_once = False

    async def fetch(self, kind: type[Row], statement: str, /, **parameters: object) -> list[Row]:
        """Run ``sql/<statement>.sql`` in a READ COMMITTED transaction of its own.

        Raises:
            DatabaseUnavailable: the outcome is unknown or the moment was wrong; run it again.
            SchemaError: the tables are not there.
            psycopg.Error: the statement itself is at fault.
        """
        async with self._turn:
            try:
                async with asyncio.timeout(STATEMENT_SECONDS_MAX):
                    return await self._run(kind, statements.psycopg(statement), parameters)
            except TimeoutError:
                await self._drop()
                raise DatabaseUnavailable(f"no answer within {STATEMENT_SECONDS_MAX:g} s") from None
            except asyncio.CancelledError:
                await self._drop()
                raise
            except psycopg.Error as error:
                raise await self._explained(error) from error

    async def execute(self, statement: str, /, **parameters: object) -> None:
        """Run a statement whose rows don't matter; raises as ``fetch``."""
        await self.fetch(_AnyRow, statement, **parameters)

    async def raw(self) -> AsyncConnection[Any]:
        """Return the open psycopg connection (autocommit), connecting where needed."""
        if self._raw is None or self._raw.closed:
            self._raw = await AsyncConnection.connect(self._conninfo, autocommit=True)
            await self._pin(self._raw)
        return self._raw

    async def close(self) -> None:
        """Close it; a later use opens it again."""
        await self._drop()

    async def _pin(self, raw: AsyncConnection[Any]) -> None:
        """Make sure of READ COMMITTED, whatever role and database default to.

        Under another level SKIP LOCKED raises 40001 instead of skipping. A SET would leak to other
        clients behind a pooler; so a statement runs alone where the default is right (one round
        trip), and inside an explicit BEGIN where it isn't.
        """
        cursor = await raw.execute(
            "SELECT current_setting('default_transaction_isolation') = 'read committed'"
            " AND NOT current_setting('default_transaction_read_only')::boolean"
        )
        row = await cursor.fetchone()
        self._default_fits = row is not None and row[0] is True
        await raw.set_isolation_level(IsolationLevel.READ_COMMITTED)
        await raw.set_read_only(False)

    async def _run(
        self, kind: type[Row], query: str, parameters: Mapping[str, object]
    ) -> list[Row]:
        raw = await self.raw()
        begin = nullcontext() if self._default_fits else raw.transaction()
        async with begin, raw.cursor(row_factory=_rows_of(kind)) as cursor:
            await cursor.execute(query.encode(), parameters)
            return await cursor.fetchall() if cursor.description else []

    async def _explained(self, error: psycopg.Error) -> Exception:
        if error.sqlstate in {"42P01", "3F000"}:
            return SchemaError("the outbox schema is not in this database; run: outbox migrate")
        if not passing(error):
            return error
        await self._drop()
        return DatabaseUnavailable(reason(error))

    async def _drop(self) -> None:
        raw, self._raw, self.broken_once = self._raw, None, True
        if raw is not None:
            await raw.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _rows_of(kind: type[Row]) -> AsyncRowFactory[Row]:
    """Rows as objects of ``kind``: by position where the columns come in the order of its fields,
    which takes half the time; else by name.
    """

    def factory(cursor: AsyncCursor[Any]) -> RowMaker[Row]:
        columns = tuple(column.name for column in cursor.description or ())
        in_order = columns == getattr(kind, "__match_args__", None)
        return args_row(kind)(cursor) if in_order else class_row(kind)(cursor)

    return factory


class _AnyRow:
    def __init__(self, **_: object) -> None: ...
