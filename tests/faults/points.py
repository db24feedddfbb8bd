"""The points at which a consumer can die, named from outside while it runs.

Before and after each database statement of its cycle, each connect, and each single send and
receive on the way to the provider. Names carry their turn: ``settle_attempts#2:before``. What polls
and heartbeats repeat at their own pace counts once, at its first time; so the list of a run is the
same in every run, and a new statement makes it longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from httpcore._backends.anyio import AnyIOBackend, AnyIOStream

from outbox.connection import Connection

Result = TypeVar("Result")
Arrive = Callable[[str], None]

#: The statements of a job's way: each time counts.
CYCLE = frozenset({"begin_effects", "read_effects", "reopen_effects", "settle_attempts"})
#: The claims: each time counts at which they must find something.
CLAIMS = {"claim_jobs": "ready", "claim_crashed_job": "crashed"}
#: These come when a clock says so, and only now and then within the way of a quick job.
PACED = frozenset({"extend_leases"})


class Points:
    """Calls ``arrive`` with each point's name when a consumer of this process comes to it.

    ``topics`` are its own; ``ready`` and ``crashed`` say how many jobs wait for it in which way;
    ``paced``: whether heartbeats count, too.
    """

    def __init__(
        self, arrive: Arrive, topics: Iterable[str], *, ready: int, crashed: int, paced: bool
    ) -> None:
        self._arrive = arrive
        self._topics = frozenset(topics)
        self._due = {"ready": ready, "crashed": crashed}
        self._left_out = frozenset() if paced else PACED
        self._turns: Counter[str] = Counter()

    def watch(self) -> None:
        """Wrap what the consumer is made of."""
        self._wrap(Connection, "fetch", self._statement, self._after_statement)
        self._wrap(Connection, "raw", self._connection)
        self._wrap(AnyIOBackend, "connect_tcp", lambda *_, **__: self._turn("connect"))
        self._wrap(AnyIOStream, "write", self._sending)
        self._wrap(AnyIOStream, "read", lambda *_, **__: self._turn("receive"))

    def _wrap(
        self,
        owner: type,
        method: str,
        name: Callable[..., str | None],
        learn: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        original: Callable[..., Awaitable[Any]] = getattr(owner, method)

        @wraps(original)
        async def wrapped(*arguments: object, **named: object) -> object:
            point = name(*arguments, **named)
            if point is not None:
                self._arrive(f"{point}:before")
            result = await original(*arguments, **named)
            if point is not None:
                self._arrive(f"{point}:after")
            learn(result, *arguments)
            return result

        setattr(owner, method, wrapped)

    def _turn(self, name: str) -> str:
        self._turns[name] += 1
        return f"{name}#{self._turns[name]}"

    def _first(self, name: str) -> str | None:
        return None if self._turns[name] else self._turn(name).removesuffix("#1")

    def _connection(self, connection: Connection, *_: object) -> str | None:
        if connection._raw is not None and not connection._raw.closed:
            return None
        # The name that PostgreSQL shows: "outbox settle HOST:PID:...".
        words = connection._conninfo.partition("application_name='outbox ")[2]
        return self._first(f"open {words.partition(' ')[0]}")

    def _statement(self, _: Connection, __: type, statement: str, /, **___: object) -> str | None:
        if statement in CYCLE:
            return self._turn(statement)
        if statement in CLAIMS:
            return self._turn(statement) if self._due[CLAIMS[statement]] > 0 else None
        return None if statement in self._left_out else self._first(statement)

    def _after_statement(
        self, rows: list[Any], _: Connection, __: type, statement: str, /, *___: object
    ) -> None:
        if statement in CLAIMS:
            self._due[CLAIMS[statement]] -= len(rows)
        elif statement == "promote_due_jobs":
            mine = sum(row.topic in self._topics for row in rows)
            self._due["ready"] += mine
            if mine:
                self._arrive(f"{self._turn('promote_due_jobs, of its own')}:after")

    def _sending(self, _: AnyIOStream, buffer: bytes, *__: object, **___: object) -> str | None:
        return self._turn("send") if buffer else None
