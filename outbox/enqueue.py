"""Enqueueing: one INSERT in the caller's transaction, on whatever connection it is given.

It never commits, never blocks on another transaction, and never fails on a key that is there
already: the second job of a key is stored too, and ends as a duplicate.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload

from outbox.caller import Insert, insert
from outbox.errors import InvalidJob
from outbox.new_job import NewJob

if TYPE_CHECKING:
    from outbox.caller import AsyncCaller, SyncCaller

#: As pydantic reads them, so that one setting means the same to producers and consumers.
_OFF = {"0", "f", "false", "n", "no", "off"}
#: So many jobs of ``enqueue_many``, or of so much JSON, go in one statement: a round trip for them
#: is nothing by then, and they lie in memory several times over, here and on the server.
_AT_ONCE = 1000
_CHARACTERS_AT_ONCE = 4 * 1024**2


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
        job = NewJob(
            payload=payload,
            effect_key=effect_key,
            available_at=available_at,
            expires_at=expires_at,
            priority=priority,
            ordering_key=ordering_key,
            max_attempts=max_attempts,
        )
        row = {**job.row(topic), "notify": self._notify}
        ids = insert(caller, Insert("insert_job", [row], 1))
        return ids[0] if isinstance(ids, list) else _first(ids)

    @overload
    def enqueue_many(self, caller: SyncCaller, topic: str, jobs: Iterable[NewJob]) -> list[int]: ...

    @overload
    def enqueue_many(
        self, caller: AsyncCaller, topic: str, jobs: Iterable[NewJob]
    ) -> Awaitable[list[int]]: ...

    def enqueue_many(
        self, caller: SyncCaller | AsyncCaller, topic: str, jobs: Iterable[NewJob]
    ) -> list[int] | Awaitable[list[int]]:
        """Write many jobs of a topic into the caller's transaction; returns their ids in order.

        A statement for each thousand, or each 4 MB. ``caller`` as for :meth:`enqueue`.

        Raises:
            InvalidJob: an argument is wrong, ``field`` says of which job; raised before any SQL.
            WrongConnection: as for :meth:`enqueue`.
        """
        rows = [_as_json(number, job, topic) for number, job in enumerate(jobs)]
        given = (
            {"jobs": f"[{','.join(part)}]", "topic": topic, "notify": self._notify}
            for part in _parts(rows)
        )
        return insert(caller, Insert("insert_jobs", given, len(rows)))


async def _first(ids: Awaitable[list[int]]) -> int:
    return (await ids)[0]


def _as_json(number: int, job: NewJob, topic: str) -> str:
    """A job as the statement reads it; an error says which of them it is about."""
    try:
        return _encode(job.row(topic))
    except InvalidJob as error:
        raise InvalidJob(f"jobs[{number}].{error.field}", error.problem) from None


_encode = json.JSONEncoder(
    check_circular=False,
    default=lambda value: value.hex() if isinstance(value, bytes) else str(value),
).encode


def _parts(rows: Iterable[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for row in rows:
        size += len(row)
        if len(part) == _AT_ONCE or (part and size > _CHARACTERS_AT_ONCE):
            yield part
            part, size = [], len(row)
        part.append(row)
    if part:
        yield part
