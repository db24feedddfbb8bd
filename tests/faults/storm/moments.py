"""The moments of a consumer's life at which something can happen to it, named from outside.

For each statement: before it, when it has been sent and its answer has not come, and after it; each
opening of a connection to PostgreSQL; each connect, send and receive on the way to the provider.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from functools import wraps
from typing import Any

import psycopg

from consumers.email.line import Line, Wire
from outbox.connection import Connection

Arrive = Callable[[str], None]

#: What each job passes: claimed, begun, called, settled.
JOB_STATEMENTS = (
    "claim_jobs",
    "claim_crashed_job",
    "begin_effects",
    "read_effects",
    "reopen_effects",
    "settle_attempts",
)
#: What a consumer does for itself, and for what has waited.
OTHER_STATEMENTS = (
    "note_consumer",
    "promote_due_jobs",
    "release_ordered_jobs",
    "release_held_jobs",
    "list_lanes",
    "find_crashed_job",
    "extend_leases",
    "find_pending_job",
    "forget_consumer",
)
#: The consumer's connections, as PostgreSQL sees them: ``outbox claim HOST:PID:...``.
CONNECTIONS = ("claim", "begin", "settle", "heartbeat", "listen")
_STEPS = ("before", "sent", "after")
JOB_MOMENTS = tuple(
    f"{what}:{step}"
    for what, steps in (
        *((statement, _STEPS) for statement in JOB_STATEMENTS),
        *((step, ("before", "after")) for step in ("connect", "send", "receive")),
    )
    for step in steps
)
OTHER_MOMENTS = tuple(
    f"{what}:{step}"
    for what, steps in (
        *((statement, _STEPS) for statement in OTHER_STATEMENTS),
        *((f"open {name}", ("before", "after")) for name in CONNECTIONS),
    )
    for step in steps
)

_statement: ContextVar[str | None] = ContextVar("statement", default=None)


def watch(arrive: Arrive) -> None:
    """Call ``arrive`` with each moment's name when this process comes to it."""
    _wrap(Line, "connect", lambda *_, **__: "connect", arrive)
    _wrap(Wire, "more", lambda *_, **__: "receive", arrive)
    _wrap_send(arrive)
    _wrap(Connection, "raw", _opening, arrive)
    _wrap(Connection, "fetch", lambda _, __, statement, **___: str(statement), arrive)
    _wrap_waits(arrive)


def _opening(connection: Connection) -> str | None:
    if connection._raw is not None and not connection._raw.closed:
        return None
    words = connection._conninfo.partition("application_name='outbox ")[2]
    return f"open {words.partition(' ')[0]}"


def _wrap(owner: type, method: str, name: Callable[..., str | None], arrive: Arrive) -> None:
    original = getattr(owner, method)
    is_statement = method == "fetch"

    @wraps(original)
    async def wrapped(*arguments: object, **named: object) -> object:
        what = name(*arguments, **named)
        if what is None:
            return await original(*arguments, **named)
        arrive(f"{what}:before")
        token = _statement.set(what if is_statement else None)
        try:
            result = await original(*arguments, **named)
        finally:
            _statement.reset(token)
        arrive(f"{what}:after")
        return result

    setattr(owner, method, wrapped)


def _wrap_send(arrive: Arrive) -> None:
    original = Wire.send

    @wraps(original)
    def wrapped(*arguments: Any) -> None:
        arrive("send:before")
        original(*arguments)
        arrive("send:after")

    setattr(Wire, "send", wrapped)  # noqa: B010 -- mypy forbids to assign to a method


def _wrap_waits(arrive: Arrive) -> None:
    original = psycopg.AsyncConnection.wait

    @wraps(original)
    async def wait(
        self: psycopg.AsyncConnection[Any], gen: Generator[Any, Any, Any], *rest: Any, **named: Any
    ) -> Any:
        statement = _statement.get()
        watched = gen if statement is None else _watched(gen, f"{statement}:sent", arrive)
        return await original(self, watched, *rest, **named)

    psycopg.AsyncConnection.wait = wait  # type: ignore[method-assign]


def _watched(
    gen: Generator[Any, Any, Any], moment: str, arrive: Arrive
) -> Generator[Any, Any, Any]:
    """Arrive each time that this waits for the server."""
    try:
        wanted = next(gen)
        while True:
            arrive(moment)
            wanted = gen.send((yield wanted))
    except StopIteration as end:
        return end.value
