"""The storm of one part: shoppers order, and consumers are killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass
from queue import SimpleQueue
from random import Random
from threading import Event, Lock

from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from outbox import Outbox
from shop_example.demo.processes import SHOW_SECONDS, Consumer
from shop_example.demo.shoppers import Visit, go_shopping, shares

SHOPPERS = 4
#: A consumer is killed so long after it has come up: in the middle of anything.
LIFE_SECONDS = (0.2, 3.0)


@dataclass(slots=True)
class Progress:
    """How far the storm is."""

    committed: int = 0
    rolled_back: int = 0
    kills: int = 0


class Storm:
    """Runs shoppers and killers on threads.

    Each start and each kill lets a share of the visits begin: there is work to hit to the last.
    """

    def __init__(
        self,
        engine: Engine,
        consumers: Sequence[Consumer],
        visits: Sequence[Visit],
        *,
        kills: int,
        seed: int,
    ) -> None:
        self.progress = Progress()
        self._sessions = sessionmaker(engine)
        self._outbox = Outbox()
        self._consumers = consumers
        self._kills = kills
        self._seed = seed
        self._shares = iter(shares(visits, kills + len(consumers)))
        self._waiting: SimpleQueue[Visit | None] = SimpleQueue()
        self._lock = Lock()
        self._stopping = Event()

    def blow(self, show: Callable[[Progress], None]) -> None:
        """Run to the end, showing the progress now and then.

        Raises:
            DemoFailed: a consumer ended by itself. Other errors of the threads come out as well.
        """
        with ThreadPoolExecutor(SHOPPERS + len(self._consumers)) as threads:
            try:
                self._blow(threads, show)
            finally:
                self._stopping.set()
                self._send_shoppers_home()

    def _blow(self, threads: ThreadPoolExecutor, show: Callable[[Progress], None]) -> None:
        shoppers = [threads.submit(self._shop) for _ in range(SHOPPERS)]
        killers = [
            threads.submit(self._haunt, consumer, kills, Random(f"{self._seed} {consumer.name}"))
            for consumer, kills in zip(self._consumers, self._portions(), strict=True)
        ]
        for _ in _watched(killers, shoppers):
            show(self.progress)
        self._send_shoppers_home()
        for _ in _watched(shoppers):
            show(self.progress)

    def _portions(self) -> list[int]:
        """The kills, divided among the consumers."""
        count = len(self._consumers)
        return [len(range(number, self._kills, count)) for number in range(count)]

    def _shop(self) -> None:
        while (visit := self._waiting.get()) is not None and not self._stopping.is_set():
            go_shopping(visit, self._sessions, self._outbox)
            with self._lock:
                self.progress.committed += visit.commits
                self.progress.rolled_back += visit.rolls_back

    def _haunt(self, consumer: Consumer, kills: int, dice: Random) -> None:
        consumer.wait_until_up(self._stopping)
        self._let_in()
        for _ in range(kills):
            if self._stopping.wait(dice.uniform(*LIFE_SECONDS)):
                return
            consumer.kill()
            self._count_kill()
            self._let_in()
            consumer.start()
            consumer.wait_until_up(self._stopping)

    def _count_kill(self) -> None:
        with self._lock:
            self.progress.kills += 1

    def _let_in(self) -> None:
        """Let the next share of the visits begin."""
        with self._lock:
            for visit in next(self._shares, ()):
                self._waiting.put(visit)

    def _send_shoppers_home(self) -> None:
        for _ in range(SHOPPERS):
            self._waiting.put(None)


def _watched(
    awaited: Sequence[Future[None]], others: Sequence[Future[None]] = ()
) -> Iterator[None]:
    """Yield now and then until all that is awaited has ended; raise the first error of anyone."""
    pending = set(awaited)
    while pending:
        _, pending = wait_for_futures(pending, timeout=SHOW_SECONDS)
        for future in (*awaited, *others):
            if future.done():
                future.result()
        yield
