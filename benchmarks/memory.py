"""Whether a consumer's memory stays what it is while it sends one e-mail after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg

from benchmarks import mailing
from benchmarks.crew import Worker, crew
from benchmarks.oracle import exactly_once
from benchmarks.provider import Provider, provider
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from outbox.clock import boot_seconds

CONCURRENCY = 50
_SECONDS_MAX = 3600.0


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """The real e-mail consumer, fifty in flight, works off a backlog."""
    yield measure(server, 200_000 if full else 5_000)


def measure(server: Server, count: int) -> Line:
    """One consumer process, whose memory is looked at after each tenth of so many e-mails."""
    with server.database() as url, provider() as there:
        with psycopg.connect(url, autocommit=True) as connection:
            mailing.fill(connection, count)
            connection.execute("VACUUM ANALYZE outbox.job")
        keys: list[str] = []
        with crew(mailing.runner, (url, there.url, CONCURRENCY)) as (worker,):
            tenths = list(_tenths(worker, there, keys, count))
        keys += (key for key, _ in there.arrivals())
        assert len(set(keys)) == count
        exactly_once(url, count, len(keys))
    return _line(count, tenths)


def _tenths(
    worker: Worker, there: Provider, keys: list[str], count: int
) -> Iterator[mailing.Memory]:
    """The consumer's memory after each tenth of its e-mails; ``keys`` gets those that arrive."""
    deadline = boot_seconds() + _SECONDS_MAX
    for tenth in range(1, 11):
        while 10 * len(keys) < tenth * count:
            assert boot_seconds() < deadline, f"{len(keys)} of {count} e-mails"
            time.sleep(0.02)
            keys += (key for key, _ in there.arrivals())
        worker.tell("memory")
        yield worker.receive()


def _line(count: int, tenths: list[mailing.Memory]) -> Line:
    resident = [memory.resident_megabytes for memory in tenths]
    return Line(
        "memory",
        f"{count} e-mails from a backlog",
        {
            "after the first tenth": Figure("MB", resident[:1]),
            "after the last tenth": Figure("MB", resident[-1:]),
            "after each tenth": Figure("MB", resident),
            # The kernel's own peak is counted less often than what is resident.
            "peak": Figure("MB", [max(tenths[-1].peak_megabytes, *resident)]),
        },
        checked=f"each of {count} e-mails arrived once and is in the ledger once",
        ratios={"last / first": ratio(resident[-1:], resident[:1])},
        settings={"emails": count, "concurrency": CONCURRENCY},
        words="resident memory of the consumer's process, its values the ten tenths in order",
    )
