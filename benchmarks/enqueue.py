"""What a job costs the transaction that leaves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection as Link

import psycopg

from benchmarks import consuming
from benchmarks.crew import Worker, crew, together
from benchmarks.crew import run as run_loop
from benchmarks.jobs import TOPIC
from benchmarks.noop import NoOp
from benchmarks.ordering import JOBS_OF, Wish, committer
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from benchmarks.turns import in_turns
from outbox import NewJob, Outbox
from outbox.clock import boot_seconds
from outbox.consumer import Consumer
from shop_example.database import engine_of
from shop_example.tables import create_tables

_TABLE = "CREATE TABLE bench_row (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, text text)"
_PAYLOAD = {"order_id": 1}
#: The kind without a job comes first.
_CASES = {
    "place_order": ("order", "order, job"),
    "one-row transaction": ("row", "row, job", "row, job, no hint", "row, job by SQL"),
}


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """Transactions on several connections at a time, each in a process of its own."""
    # Many short turns: what the machine does meanwhile meets all contenders alike.
    seconds, rounds = (0.6, 25) if full else (0.4, 5)
    for connections in (1, 4, 8) if full else (1, 4):
        for case in _CASES:
            yield _compare(server, case, connections, seconds=seconds, rounds=rounds)
    yield _hints(server, seconds, rounds)
    yield _in_bulk(server, 100_000 if full else 5_000, rounds=5 if full else 3)


def _compare(server: Server, case: str, connections: int, *, seconds: float, rounds: int) -> Line:
    kinds = _CASES[case]
    with _shop(server) as url, crew(committer, *((url, n) for n in range(connections))) as workers:
        rates = in_turns({k: partial(_rate, url, workers, k, seconds) for k in kinds}, rounds)
    without = kinds[0]
    return Line(
        "enqueue",
        f"{case}, {connections} connection{'s' if connections > 1 else ''}",
        {kind: Figure("transactions/s", values) for kind, values in rates.items()},
        checked="after each round there were as many jobs as transactions with one",
        # In time: so the rate without the job is the one above.
        ratios={f"{kind} / {without}": ratio(rates[without], rates[kind]) for kind in kinds[1:]},
        settings={"connections": connections, "seconds": seconds, "rounds": rounds},
        words="ratios in time: how much longer a transaction takes with the job",
    )


def _hints(server: Server, seconds: float, rounds: int) -> Line:
    """Eight connections, and a consumer process that has enough to do."""
    with (
        _shop(server) as url,
        crew(_busy_consumer, (url,)),
        crew(committer, *((url, n) for n in range(8))) as workers,
    ):
        kinds = ("row, job", "row, job, no hint")
        rates = in_turns({k: partial(_rate, None, workers, k, seconds) for k in kinds}, rounds)
    return Line(
        "enqueue",
        "8 connections, hints on and off, busy consumer",
        {
            "hints on": Figure("transactions/s", rates[kinds[0]]),
            "hints off": Figure("transactions/s", rates[kinds[1]]),
        },
        checked="no job is looked for: the consumer takes them away meanwhile",
        ratios={"hints on / off": ratio(rates[kinds[0]], rates[kinds[1]])},
        settings={"connections": 8, "seconds": seconds, "rounds": rounds},
    )


def _in_bulk(server: Server, count: int, rounds: int) -> Line:
    """One transaction with many jobs."""
    rates = in_turns(
        {
            name: partial(_bulk_rate, server, count, way)
            for name, way in (("enqueue in a loop", _one_by_one), ("enqueue_many", _all_at_once))
        },
        rounds,
    )
    return Line(
        "enqueue",
        f"{count} jobs in one transaction",
        {name: Figure("jobs/s", values) for name, values in rates.items()},
        checked=f"{count} jobs are there after each round",
        ratios={"enqueue_many / a loop": ratio(rates["enqueue_many"], rates["enqueue in a loop"])},
        settings={"jobs": count, "rounds": rounds},
    )


def _bulk_rate(server: Server, count: int, way: Callable[[psycopg.Connection, int], None]) -> float:
    with server.database() as url, psycopg.connect(url) as connection:
        started = boot_seconds()
        way(connection, count)
        connection.commit()
        seconds = boot_seconds() - started
        assert _count_jobs(url) == count
    return count / seconds


def _one_by_one(connection: psycopg.Connection, count: int) -> None:
    outbox = Outbox()
    for number in range(count):
        outbox.enqueue(connection, TOPIC, _PAYLOAD, effect_key=f"bulk-{number}")


def _all_at_once(connection: psycopg.Connection, count: int) -> None:
    jobs = (NewJob(payload=_PAYLOAD, effect_key=f"bulk-{number}") for number in range(count))
    Outbox().enqueue_many(connection, TOPIC, jobs)


@contextmanager
def _shop(server: Server) -> Iterator[str]:
    """A database with the shop's tables and one of the plainest kind."""
    with server.database() as url:
        engine = engine_of(url)
        create_tables(engine)
        engine.dispose()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_TABLE)
        yield url


def _rate(url: str | None, workers: Sequence[Worker], kind: str, seconds: float) -> float:
    """Let all commit for some seconds; without a ``url`` nobody looks at the jobs."""
    before = _count_jobs(url) if url else 0
    done: list[int] = together(workers, Wish(kind, seconds))
    if url:
        # Each has begun with one that doesn't count.
        expected = (sum(done) + len(workers)) * JOBS_OF[kind]
        assert _count_jobs(url) - before == expected, kind
    return sum(done) / seconds


def _count_jobs(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM outbox.job").fetchone()
    assert row is not None
    return int(row[0])


def _busy_consumer(link: Link, url: str) -> None:
    """Be a consumer that works off what the others enqueue."""
    link.send("ready")
    gateway = NoOp(0)
    consumer = Consumer(url, gateway, consuming.settings(), concurrency=50)
    run_loop(consuming.answering(link, consumer, lambda: gateway.calls))
