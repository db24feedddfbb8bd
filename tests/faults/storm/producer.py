"""A shop in a process of its own, which places orders until it dies.

``FIRST LAST MOMENT TURN``: it kills itself when the moment comes for the turn-th time. It notes
each order that it was told is placed, a line each, on its standard output.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from outbox import Outbox
from tests.faults.orders import payload
from tests.faults.storm.shop import ROLLED_BACK_EVERY, TOPIC, TWICE_EVERY

PLACED = "placed"
MOMENTS = (
    "connect:before",
    "connect:after",
    *(
        f"{what}:{step}"
        for what in ("order", "enqueue", "commit", "rollback")
        for step in ("before", "sent", "after")
    ),
)
#: So many orders a connection.
ORDERS_PER_CONNECTION = 3

Arrive = Callable[[str], None]


def main(words: Sequence[str]) -> int:
    """Place these orders, unless it dies before."""
    first, last, moment, turn = int(words[0]), int(words[1]), words[2], int(words[3])
    seen: Counter[str] = Counter()

    def arrive(where: str) -> None:
        seen[where] += 1
        if where == moment and seen[where] == turn:
            os.kill(os.getpid(), signal.SIGKILL)

    producer = Producer(os.environ["OUTBOX_DATABASE_URL"], arrive)
    for number in range(first, last + 1):
        if (number - first) % ORDERS_PER_CONNECTION == 0:
            producer.connect()
        # The first one, too, is rolled back in some lives.
        keep = (number + first // 1_000) % ROLLED_BACK_EVERY != 0
        producer.place(number, keep=keep)
        if keep:
            os.write(1, f"{PLACED} {number}\n".encode())
    return 0


class Producer:
    """Places orders on a connection of its own, and says what it is about to do."""

    def __init__(self, database_url: str, arrive: Arrive) -> None:
        self._database_url = database_url
        self._arrive = arrive
        self._outbox = Outbox()
        self._connection: Watched | None = None

    def connect(self) -> None:
        """Open a connection, instead of the one before."""
        if self._connection is not None:
            self._connection.close()
        self._arrive("connect:before")
        self._connection = Watched.connect(self._database_url)
        self._arrive("connect:after")

    def place(self, number: int, *, keep: bool) -> None:
        """One order and its job, or two; committed or rolled back."""
        assert self._connection is not None
        with self._step("order"):
            self._connection.execute("INSERT INTO shop.orders VALUES (%s)", [number])
        for _ in range(1 if number % TWICE_EVERY else 2):
            with self._step("enqueue"):
                self._outbox.enqueue(
                    self._connection,
                    TOPIC,
                    payload(order_id=number),
                    effect_key=f"email-order-{number}",
                )
        with self._step("commit" if keep else "rollback"):
            if keep:
                self._connection.commit()
            else:
                self._connection.rollback()

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        assert self._connection is not None
        self._arrive(f"{name}:before")
        self._connection.sent = lambda: self._arrive(f"{name}:sent")
        yield
        self._arrive(f"{name}:after")


class Watched(psycopg.Connection[Any]):
    """A connection that says each time that it has sent something and waits for the answer."""

    sent: Callable[[], None] | None = None

    def wait(self, gen: Generator[Any, Any, Any], *rest: Any, **named: Any) -> Any:
        """Wait, and say so."""
        return super().wait(self._told(gen), *rest, **named)

    def _told(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        try:
            wanted = next(gen)
            while True:
                if self.sent is not None:
                    self.sent()
                wanted = gen.send((yield wanted))
        except StopIteration as end:
            return end.value
