"""From the commit of an order to the arrival of its request at the provider, consumer idle."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from sqlalchemy.orm import Session

from benchmarks import mailing
from benchmarks.crew import crew
from benchmarks.oracle import exactly_once
from benchmarks.provider import Provider, provider
from benchmarks.record import Figure, Line
from benchmarks.server import Server
from outbox import Outbox
from outbox.clock import boot_seconds
from shop_example.database import engine_of
from shop_example.orders import effect_key, place_order
from shop_example.tables import create_tables

_ASLEEP = "SELECT count(*) FROM outbox.consumer WHERE sleeps_until > clock_timestamp()"


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """Orders come one by one, when the consumer has nothing to do."""
    rounds, orders = (5, 400) if full else (2, 60)
    delays = [list(_delays(server, orders)) for _ in range(rounds)]
    yield Line(
        "latency",
        "commit of an order to its request's arrival, consumer idle",
        {
            name: Figure("ms", [1000 * quantile(each, share) for each in delays])
            for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        },
        checked=f"{orders} orders a round, each arrived once and is in the ledger once",
        settings={"orders": orders, "rounds": rounds, "concurrency": 50, "pause_ms": "20 to 60"},
        words="counted from just before the COMMIT is sent",
    )


def quantile(values: list[float], share: float) -> float:
    """The value that ``share`` of them do not exceed."""
    cut = statistics.quantiles(values, n=1000, method="inclusive")
    return cut[round(share * 1000) - 1]


def _delays(server: Server, orders: int) -> Iterator[float]:
    with server.database() as url, provider() as there, idle_consumer(url, there):
        committed = dict(_orders(url, orders))
        arrived = _wait_for(there, orders)
        exactly_once(url, orders, len(arrived))
    yield from (moment - committed[key] for key, moment in arrived)


@contextmanager
def idle_consumer(url: str, there: Provider) -> Iterator[None]:
    """One consumer process that has said that it sleeps."""
    with crew(mailing.runner, (url, there.url, 50)), psycopg.connect(url, autocommit=True) as look:
        while (row := look.execute(_ASLEEP).fetchone()) is None or row[0] == 0:
            time.sleep(0.05)
        yield


def _orders(url: str, orders: int) -> Iterator[tuple[str, float]]:
    """Place orders, one at a time, and note when each was committed."""
    engine = engine_of(url)
    create_tables(engine)
    with Session(engine, expire_on_commit=False) as session:
        for number in range(orders):
            placed = place_order(session, Outbox(), 1 + number % 8, {1 + number % 8: 1})
            moment = boot_seconds()
            session.commit()
            yield effect_key(placed.id), moment
            time.sleep(random.uniform(0.02, 0.06))
    engine.dispose()


def _wait_for(there: Provider, orders: int) -> list[tuple[str, float]]:
    """All arrivals; the last ones may still be on their way."""
    arrived: list[tuple[str, float]] = []
    for _ in range(100):
        arrived += there.arrivals()
        if len(arrived) >= orders:
            break
        time.sleep(0.05)
    time.sleep(0.2)  # so that the last one is settled, and a repeat would be seen
    return arrived + there.arrivals()
