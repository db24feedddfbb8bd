"""The storm's shop: orders and their jobs in one transaction, as the shop example does it.

The table of orders is the truth about what was committed; the oracle reads it by plain SQL.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg

from outbox import Outbox
from tests.faults.orders import payload

TOPIC = "email.order_confirmation"
#: How often a shop looks whether its queue needs more.
LOOK_SECONDS = 0.02
#: Every so many-th order is rolled back instead: its e-mail must never be sent.
ROLLED_BACK_EVERY = 7
#: Every so many-th order asks twice for its e-mail, as a shop does that is not sure of itself.
TWICE_EVERY = 10
#: What a shop is told by a database that is away, full, or somebody else's replica by now.
AWAY = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)

_READY = """
    SELECT count(*) FROM outbox.job
    WHERE waiting IS NULL AND (lease_until IS NULL OR lease_until < clock_timestamp())
"""


@dataclass(slots=True)
class Shop:
    """Places orders in a database, each in a transaction of its own.

    ``unsure`` counts those whose COMMIT got no answer: they are placed once more, under the same
    id, as a shop does that has to be sure.
    """

    database_url: str
    placed: int = 0
    rolled_back: int = 0
    unsure: int = 0
    _next: int = 0
    _connection: psycopg.Connection | None = None
    _outbox: Outbox = field(default_factory=Outbox)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _gives_up: threading.Event = field(default_factory=threading.Event)

    def place(self, count: int) -> None:
        """So many orders, committed for sure; and some that are rolled back.

        Raises:
            psycopg.OperationalError: the database can't be reached before an order is begun.
        """
        with self._lock:
            for _ in range(count):
                self._place_next()

    def top_up(self, level: int) -> None:
        """Place what is missing until so many jobs are ready; raises as ``place``."""
        with self._lock:
            row = self._open().execute(_READY).fetchone()
            self._open().rollback()
            for _ in range(level - (row[0] if row else 0)):
                self._place_next()

    @contextmanager
    def busy(self, level: int) -> Iterator[None]:
        """Keep so many jobs ready, whatever the database is going through."""
        ending = threading.Event()
        errors: list[BaseException] = []

        def keep_busy() -> None:
            try:
                while not ending.wait(LOOK_SECONDS):
                    with contextlib.suppress(*AWAY):
                        self.top_up(level)
            except BaseException as error:  # noqa: BLE001 -- raised again by whoever waits
                errors.append(error)

        thread = threading.Thread(target=keep_busy, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            # Whatever has gone wrong: the database may never come back.
            self._gives_up.set()
            raise
        finally:
            ending.set()
            thread.join()
        for error in errors:
            raise error

    def close(self) -> None:
        """Close its connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _place_next(self) -> None:
        self._next += 1
        if self._next % ROLLED_BACK_EVERY == 0:
            self._write(self._next, keep=False)
            self._next += 1
        self._place(self._next)

    def _place(self, order_id: int) -> None:
        while True:
            try:
                self._write(order_id, keep=True)
            except AWAY:
                if self._gives_up.is_set():
                    raise
                self.unsure += 1
                time.sleep(LOOK_SECONDS)
            else:
                self.placed += 1
                return

    def _write(self, order_id: int, *, keep: bool) -> None:
        connection = self._open()
        try:
            connection.execute(
                "INSERT INTO shop.orders VALUES (%s) ON CONFLICT DO NOTHING", [order_id]
            )
            mail = payload(order_id=order_id)
            key = f"email-order-{order_id}"
            for _ in range(1 if order_id % TWICE_EVERY else 2):
                self._outbox.enqueue(connection, TOPIC, mail, effect_key=key)
            if keep:
                connection.commit()
            else:
                connection.rollback()
                self.rolled_back += 1
        except AWAY:
            self.close()
            raise

    def _open(self) -> psycopg.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.database_url, connect_timeout=5)
        return self._connection
