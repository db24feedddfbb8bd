"""What psycopg sends and receives, named from outside: for async and sync connections alike."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any

from psycopg._connection_base import BaseConnection
from psycopg._cursor_base import BaseCursor
from psycopg.waiting import Wait

#: Is told how far a statement has come: ``before``, ``sent``, ``after``.
Follow = Callable[[str], None]
#: Is asked who follows a statement.
Name = Callable[[bytes], Follow]


def watch_statements(name: Name) -> None:
    """Follow each statement of this process: a cursor's, and psycopg's own (BEGIN, COMMIT)."""
    by_cursor = BaseCursor._maybe_prepare_gen
    by_connection = BaseConnection._exec_command

    @wraps(by_cursor)
    def of_cursor(self: Any, query: Any, **named: Any) -> Generator[Any, Any, Any]:
        return _followed(by_cursor(self, query, **named), name(query.query))

    @wraps(by_connection)
    def of_connection(self: Any, command: Any, *given: Any) -> Generator[Any, Any, Any]:
        text = command if isinstance(command, bytes) else str(command).encode()
        return _followed(by_connection(self, command, *given), name(text))

    # mypy knows both as methods of generic classes, which are not to be assigned to.
    setattr(BaseCursor, "_maybe_prepare_gen", of_cursor)  # noqa: B010
    setattr(BaseConnection, "_exec_command", of_connection)  # noqa: B010


def _followed(steps: Generator[Any, Any, Any], follow: Follow) -> Generator[Any, Any, Any]:
    """Once psycopg waits for nothing but an answer, all has been sent."""
    follow("before")
    sent = False
    try:
        wait = next(steps)
        while True:
            if wait == Wait.R and not sent:
                sent = True
                follow("sent")
            wait = steps.send((yield wait))
    except StopIteration as end:
        follow("after")
        return end.value
