"""The points at which a consumer can die, named from outside while it runs.

Before and after each database statement of its cycle and when it has been sent, each connect, and
each single send and receive on the way to the provider. Names carry their turn:
``settle_attempts#2:before``. What polls and heartbeats repeat at their own pace counts once, at its
first time; so the list of a run is the same in every run, and a new statement makes it longer.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeVar

from consumers.email.line import Line, Wire
from outbox import schema
from outbox.connection import Connection
from outbox.consumer import Consumer
from tests.faults.driver import watch_statements

Result = TypeVar("Result")
Arrive = Callable[[str], None]

#: The statements of a job's way: each time counts.
CYCLE = frozenset({"begin_effects", "read_effects", "reopen_effects", "settle_attempts"})
#: The claims: each time counts at which they must find something.
CLAIMS = {"claim_jobs": "ready", "claim_crashed_job": "crashed"}
#: What lets waiting jobs into the queue; who ran it learns from the answer whose they were.
RELEASES = frozenset({"promote_due_jobs", "release_ordered_jobs", "release_held_jobs"})
#: These come when a clock says so, and only now and then within the way of a quick job; on a slow
#: one's, the first counts that comes when the request has left.
PACED = frozenset({"extend_leases"})

#: The step that the code which runs now belongs to.
_step: ContextVar[str | None] = ContextVar("step", default=None)


class Points:
    """Calls ``arrive`` with each point's name when a consumer of this process comes to it.

    ``topics`` are its own; ``ready`` and ``crashed`` say how many jobs wait for it in which way;
    ``paced``: whether heartbeats count, too; ``stop_at``: where it is told to stop by SIGTERM.
    """

    def __init__(
        self,
        arrive: Arrive,
        topics: Iterable[str],
        *,
        ready: int,
        crashed: int,
        paced: bool,
        stop_at: str | None,
    ) -> None:
        self._arrive = arrive
        self._topics = frozenset(topics)
        self._due = {"ready": ready, "crashed": crashed}
        self._left_out = frozenset() if paced else PACED
        self._stop_at = stop_at
        self._stopping = asyncio.Event()
        self._turns: Counter[str] = Counter()
        self._sent: set[str] = set()
        self._request_has_left = False

    def watch(self) -> None:
        """Wrap what the consumer is made of."""
        self._wrap(Consumer, "run", lambda *_, **__: f"run on {_loop()}")
        self._wrap(Connection, "fetch", self._statement, self._after_statement)
        self._wrap(Connection, "raw", self._connection)
        self._wrap(Line, "connect", lambda *_, **__: self._turn("connect"))
        self._wrap(Wire, "more", lambda *_, **__: self._turn("receive"))
        self._watch_send()
        watch_statements(self._follow)
        self._watch_check()
        self._watch_stop()

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
            step = name(*arguments, **named)
            if step is not None:
                self._arrive(f"{step}:before")
            token = _step.set(step)
            try:
                result = await original(*arguments, **named)
            finally:
                _step.reset(token)
            if step is not None:
                self._arrive(f"{step}:after")
                if f"{step}:after" == self._stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                    await self._stopping.wait()
            learn(result, *arguments)
            return result

        setattr(owner, method, wrapped)

    def _watch_send(self) -> None:
        """The one write of a request, which waits for nothing."""
        original = Wire.send

        @wraps(original)
        def wrapped(*arguments: Any) -> None:
            step = self._turn("send")
            self._arrive(f"{step}:before")
            original(*arguments)
            self._request_has_left = True
            self._arrive(f"{step}:after")
            if f"{step}:after" == self._stop_at:
                os.kill(os.getpid(), signal.SIGTERM)

        setattr(Wire, "send", wrapped)  # noqa: B010 -- mypy forbids to assign to a method

    def _watch_check(self) -> None:
        """The look at the schema: in a thread of its own, several statements that only read."""
        original = schema.check_url

        @wraps(original)
        def wrapped(url: str) -> None:
            self._arrive("check_schema:before")
            _step.set("check_schema")
            original(url)
            self._arrive("check_schema:after")

        schema.check_url = wrapped

    def _watch_stop(self) -> None:
        original = Consumer.stop

        @wraps(original)
        def wrapped(consumer: Consumer) -> None:
            original(consumer)
            self._stopping.set()

        setattr(Consumer, "stop", wrapped)  # noqa: B010 -- mypy forbids to assign to a method

    def _follow(self, query: bytes) -> Callable[[str], None]:
        """Tell when the first statement of a step has been sent; LISTEN is a step of its own."""
        listens = query.startswith(b"LISTEN")
        step = self._first("LISTEN") if listens else _step.get()

        def follow(moment: str) -> None:
            if step is None or step.startswith("run on"):
                return
            if moment == "sent" and step not in self._sent:
                self._sent.add(step)
                self._arrive(f"{step}:sent")
            elif listens and moment != "sent":
                self._arrive(f"{step}:{moment}")

        return follow

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
        if statement in PACED and not self._request_has_left:
            return None
        return None if statement in self._left_out else self._first(statement)

    def _after_statement(
        self, rows: list[Any], _: Connection, __: type, statement: str, /, *___: object
    ) -> None:
        if statement in CLAIMS:
            self._due[CLAIMS[statement]] -= len(rows)
        elif statement in RELEASES:
            mine = sum(row.topic in self._topics for row in rows)
            self._due["ready"] += mine
            if mine:
                self._arrive(f"{self._turn(f'{statement}, of its own')}:after")


def _loop() -> str:
    """The library whose event loop runs."""
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]
