"""Draining: no-op effects through the full way, by one and by two consumer processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import psycopg

from benchmarks import byhand, consuming, jobs, pgbench
from benchmarks.crew import Worker, crew
from benchmarks.oracle import exactly_once
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from benchmarks.turns import in_turns
from outbox.clock import boot_seconds

CONCURRENCY = 200
BATCH = 100

#: Drains a database, and says how long that took and how many calls it made.
_Drain = Callable[[str], tuple[float, int]]


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """20,000 jobs a round with a request of 4 KB and without one; in full, 200,000 too."""
    for count, rounds in ((20_000, 5), (200_000, 3)) if full else ((4_000, 3),):
        for request_bytes in (4096, 0):
            yield _compare(server, count, rounds, request_bytes)


def _compare(server: Server, count: int, rounds: int, request_bytes: int) -> Line:
    arguments = (request_bytes, CONCURRENCY)
    with crew(consuming.drainer, arguments, arguments) as workers:
        ways = _ways(workers, count, request_bytes)
        contenders = {
            name: partial(_rate, server, count, exactly_once, way) for name, way in ways.items()
        }
        rates = in_turns(contenders, rounds)
        workers[0].tell(consuming.PEAK)
        peak = Figure("MB", [workers[0].receive()])
    one, two = rates["one consumer process"], rates["two consumer processes"]
    ratios = {"one / by hand": ratio(one, rates["by hand"]), "two / one": ratio(two, one)}
    if "pgbench" in rates:
        ratios["one / pgbench"] = ratio(one, rates["pgbench"])
    request = f"{request_bytes // 1024} KB request" if request_bytes else "no request"
    return Line(
        "drain",
        f"{count} jobs, {request}",
        {name: Figure("jobs/s", values) for name, values in rates.items()}
        | {"peak memory of a process, all rounds": peak},
        checked=f"{count} jobs a round and contender, each ran exactly once",
        ratios=ratios,
        settings={"concurrency": CONCURRENCY, "batch by hand": BATCH, "rounds": rounds},
    )


def _ways(workers: list[Worker], count: int, request_bytes: int) -> dict[str, _Drain]:
    ways: dict[str, _Drain] = {
        "one consumer process": partial(consuming.drain, workers[:1]),
        "two consumer processes": partial(consuming.drain, workers),
        "by hand": _timed(partial(byhand.drain, request_bytes=request_bytes, batch=BATCH)),
    }
    if not request_bytes and pgbench.program():
        ways["pgbench"] = _timed(partial(pgbench.drain, jobs=count, batch=BATCH))
    return ways


def _timed(way: Callable[[str], int]) -> _Drain:
    def timed(url: str) -> tuple[float, int]:
        started = boot_seconds()
        done = way(url)
        return boot_seconds() - started, done

    return timed


def _rate(server: Server, count: int, check: Callable[..., str], way: _Drain) -> float:
    with server.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            jobs.fill(connection, count)
            connection.execute("VACUUM ANALYZE outbox.job")
        seconds, calls = way(url)
        check(url, count, calls)
        return count / seconds
