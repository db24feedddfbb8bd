"""Processes that commit transactions with a job in them, or without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection as Link
from typing import Any

import psycopg
from sqlalchemy.orm import Session

from benchmarks.crew import messages
from benchmarks.jobs import TOPIC
from outbox import Outbox
from outbox.clock import boot_seconds
from shop_example import orders
from shop_example.database import engine_of
from shop_example.tables import Order

_PAYLOAD = {"order_id": 1, "customer": {"name": "Ada", "email": "ada@example.com"}}
#: What a job costs at least: one row by SQL alone, unchecked, without a hint.
_BARE_JOB = """
INSERT INTO outbox.job (id, topic, position, effect_key, payload, payload_fingerprint)
SELECT id, %s, id, %s, '{"order_id": 1}', %s
FROM (SELECT nextval('outbox.job_position') AS id) AS next
"""
_FINGERPRINT = b"0" * 32
#: How many jobs one transaction of each kind leaves.
JOBS_OF = {
    "row": 0,
    "row, job by SQL": 1,
    "row, job": 1,
    "row, job, no hint": 1,
    "order": 0,
    "order, job": 1,
}


@dataclass(frozen=True, slots=True)
class Wish:
    """Commit one kind of transaction for some seconds."""

    kind: str
    seconds: float


class NoOutbox(Outbox):
    """A shop that sends no e-mails."""

    def enqueue(self, *_: object, **__: object) -> int:  # type: ignore[override]
        """Do nothing."""
        return 0


def committer(link: Link, url: str, number: int) -> None:
    """Be a process with one connection; told a ``Wish``, it says how many it has committed."""
    kinds = {**_bare_kinds(url, number), **_shop_kinds(url, number)}
    for wish in messages(link):
        commit = kinds[wish.kind]
        commit()  # connections, plans and caches are there before the clock runs
        done, deadline = 0, boot_seconds() + wish.seconds
        while boot_seconds() < deadline:
            commit()
            done += 1
        link.send(done)


def _bare_kinds(url: str, number: int) -> dict[str, Callable[[], None]]:
    """A transaction of one row, on a bare psycopg connection."""
    connection = psycopg.connect(url)
    with_hint, without_hint, numbers = Outbox(notify=True), Outbox(notify=False), count()

    def row() -> None:
        connection.execute("INSERT INTO bench_row (text) VALUES (%s)", ["a row of the business"])

    def bare() -> None:
        row()
        connection.commit()

    def by_sql() -> None:
        row()
        key = f"sql-{number}-{next(numbers)}"
        connection.execute(_BARE_JOB, [TOPIC, key, _FINGERPRINT])
        connection.commit()

    def by(outbox: Outbox) -> Callable[[], None]:
        def with_job() -> None:
            row()
            key = f"row-{number}-{next(numbers)}"
            outbox.enqueue(connection, TOPIC, _PAYLOAD, effect_key=key)
            connection.commit()

        return with_job

    return {
        "row": bare,
        "row, job by SQL": by_sql,
        "row, job": by(with_hint),
        "row, job, no hint": by(without_hint),
    }


def _shop_kinds(url: str, number: int) -> dict[str, Callable[[], None]]:
    """The shop's own place_order; without the job it doesn't write up the e-mail's payload."""
    session = Session(engine_of(url), expire_on_commit=False)
    confirmation = orders.confirmation

    def by(outbox: Outbox, payload: Callable[[Order], dict[str, Any]]) -> Callable[[], None]:
        def place() -> None:
            orders.confirmation = payload  # type: ignore[assignment]
            # Each connection has its own customer and product: they don't wait for each other.
            orders.place_order(session, outbox, 1 + number % 8, {1 + number % 8: 1})
            session.commit()
            session.expunge_all()

        return place

    return {
        "order": by(NoOutbox(), lambda _: {}),
        "order, job": by(Outbox(notify=True), confirmation),
    }
