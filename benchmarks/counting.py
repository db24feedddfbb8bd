"""Counts what a consumer in this process sends to the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psycopg

from outbox import statements

_SQL = Path(statements.__file__).parent / "sql"


@dataclass(slots=True)
class Traffic:
    """Statements by name, and round trips of all connections but the one that listens."""

    statements: Counter[str] = field(default_factory=Counter)
    round_trips: int = 0


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count everything that psycopg's async connections do meanwhile.

    A wait is what psycopg does for the server's answer: one for each statement, or for each of a
    transaction's BEGIN and COMMIT.
    """
    traffic = Traffic()
    connection, cursor = psycopg.AsyncConnection, psycopg.AsyncCursor
    wait, execute = connection.wait, cursor.execute
    listens: dict[psycopg.AsyncConnection[Any], bool] = {}

    async def counting_wait(self: psycopg.AsyncConnection[Any], *args: Any, **given: Any) -> Any:
        if self not in listens:
            listens[self] = (
                self.info.get_parameters().get("application_name", "").startswith("outbox listen")
            )
        traffic.round_trips += not listens[self]
        return await wait(self, *args, **given)

    async def counting_execute(
        self: psycopg.AsyncCursor[Any], query: Any, *args: Any, **given: Any
    ) -> Any:
        traffic.statements[_name(query)] += 1
        return await execute(self, query, *args, **given)

    connection.wait = counting_wait  # type: ignore[method-assign]
    cursor.execute = counting_execute  # type: ignore[method-assign]
    try:
        yield traffic
    finally:
        connection.wait = wait  # type: ignore[method-assign]
        cursor.execute = execute  # type: ignore[method-assign]


def _name(query: object) -> str:
    text = query.decode() if isinstance(query, bytes) else str(query)
    return _names().get(text, text.split()[0].lower() if text else "")


@cache
def _names() -> dict[str, str]:
    names = (path.stem for path in _SQL.glob("*.sql"))
    return {statements.psycopg(name): name for name in names}
