"""What it is like behind many waiting jobs: a claim, an urgent job, the memory of a consumer."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass

import psycopg

from benchmarks import consuming, jobs
from benchmarks.crew import Worker, crew
from benchmarks.oracle import exactly_once
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from outbox import Outbox
from outbox.claim import Claims
from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.lease import Leases

FEW = 1_000
CLAIM = 100
#: Slow enough that the backlog outlasts the measurement.
CONCURRENCY = 50
REQUEST_BYTES = 4096
#: So many calls, and a consumer's connections, plans and caches are there.
_SETTLED_IN = 5_000
_READY = "SELECT EXISTS (SELECT FROM outbox.job WHERE topic = %s AND lease_until IS NULL)"


@dataclass(frozen=True, slots=True)
class Backlog:
    """What waits while something is measured."""

    ready: int
    scheduled: int = 0
    ledger: int = 0

    def __str__(self) -> str:
        parts = (
            f"{self.ready:,} ready",
            f"{self.scheduled:,} scheduled" if self.scheduled else "",
            f"{self.ledger:,} in the ledger" if self.ledger else "",
        )
        return ", ".join(part for part in parts if part)


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """With 100,000 and with five million waiting, a million of them for later."""
    large = Backlog(100_000)
    yield from _behind(server, large, rounds=5, urgent=20 if full else 5)
    if full:
        larger = Backlog(4_000_000, scheduled=1_000_000, ledger=10_000_000)
        yield from _behind(server, larger, rounds=5, urgent=20)


def _behind(server: Server, backlog: Backlog, *, rounds: int, urgent: int) -> Iterator[Line]:
    with server.database() as small, server.database() as large:
        _make(small, Backlog(FEW))
        _make(large, backlog)
        yield _claims(small, large, backlog, rounds)
        yield _urgent(large, backlog, urgent)


def _make(url: str, backlog: Backlog) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        # In steps: one transaction of five million would take its time to begin with.
        for start in range(0, backlog.ready, 500_000):
            count = min(500_000, backlog.ready - start)
            jobs.fill(connection, count, prefix=f"k{start}-")
        for _ in range(0, backlog.scheduled, 500_000):
            jobs.schedule(connection, min(500_000, backlog.scheduled))
        if backlog.ledger:
            jobs.remember(connection, backlog.ledger)
        connection.execute("VACUUM ANALYZE outbox.job, outbox.effect")
        connection.execute("CHECKPOINT")


def _claims(small: str, large: str, backlog: Backlog, rounds: int) -> Line:
    """A consumer's own claims of 100, one after the other, in both databases in turns."""
    few: list[_Milliseconds] = []
    many: list[_Milliseconds] = []
    for _ in range(rounds):
        few.append(asyncio.run(_claiming(small)))
        many.append(asyncio.run(_claiming(large)))
        _unclaim(small)
        _unclaim(large)
    claims = [one.claim for one in many], [one.claim for one in few]
    return Line(
        "backlog",
        f"claim of {CLAIM} behind {backlog}",
        {
            f"{FEW:,} ready": Figure("ms", claims[1]),
            f"{backlog}": Figure("ms", claims[0]),
            "full scan at the start": Figure("ms", [one.first_scan for one in many]),
            "full scan later": Figure("ms", [one.later_scan for one in many]),
        },
        checked=f"each claim took {CLAIM} jobs",
        ratios={"many / few": ratio(*claims)},
        settings={"rounds": rounds, "claims a round": FEW // CLAIM},
    )


@dataclass(frozen=True, slots=True)
class _Milliseconds:
    first_scan: float
    claim: float
    later_scan: float


async def _claiming(url: str) -> _Milliseconds:
    """A full scan, claims one after the other (their median counts), and a full scan again."""
    connection = Connection(url, "benchmark")
    leases = Leases(connection, "bench:1", 60.0)
    claims = Claims(
        connection, leases, "bench:1", [jobs.TOPIC], lease_seconds=60.0, poll_seconds=60.0
    )

    async def claim() -> None:
        assert len(await claims.take(CLAIM)) == CLAIM

    try:
        first_scan = await _milliseconds(claims.scan())
        taken = [await _milliseconds(claim()) for _ in range(FEW // CLAIM)]
        return _Milliseconds(
            first_scan, statistics.median(taken), await _milliseconds(claims.scan())
        )
    finally:
        await connection.close()


async def _milliseconds(work: Awaitable[None]) -> float:
    started = boot_seconds()
    await work
    return 1000 * (boot_seconds() - started)


def _unclaim(url: str) -> None:
    """Put back what was claimed, and leave no dead rows behind for the next round."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE outbox.job SET claimed_by = NULL, claimed_at = NULL, lease_until = NULL,"
            " attempts = 0 WHERE lease_until IS NOT NULL"
        )
        connection.execute("VACUUM outbox.job")


def _urgent(url: str, backlog: Backlog, count: int) -> Line:
    """Urgent jobs, one after the other, while a consumer works on the backlog."""
    with (
        crew(consuming.recorder, (url, REQUEST_BYTES, CONCURRENCY)) as (worker,),
        psycopg.connect(url) as connection,
    ):
        consuming.arrivals(worker, _SETTLED_IN)
        delays = [_urgent_delay(connection, worker, number) for number in range(count)]
        megabytes = consuming.seen(worker).megabytes
        assert _ready(connection), "the backlog was gone before the last urgent job came"
    exactly_once(url, count, count, keys="urgent-%")
    return Line(
        "backlog",
        f"urgent job behind {backlog}",
        {
            "commit to call": Figure("ms", delays),
            "memory of the consumer": Figure("MB", [megabytes]),
        },
        checked="each urgent job ran once",
        settings={"request_bytes": REQUEST_BYTES, "concurrency": CONCURRENCY, "priority": -1},
        words="values are single jobs",
    )


def _urgent_delay(connection: psycopg.Connection, worker: Worker, number: int) -> float:
    key = f"urgent-{number}"
    Outbox().enqueue(connection, jobs.TOPIC, {"n": number}, effect_key=key, priority=-1)
    committed = boot_seconds()
    connection.commit()
    for _ in range(600):
        came = [moment for k, moment in consuming.arrivals(worker, 1) if k == key]
        if came:
            assert len(came) == 1
            return 1000 * (came[0] - committed)
    raise AssertionError("an urgent job was not worked on within a minute")


def _ready(connection: psycopg.Connection) -> bool:
    row = connection.execute(_READY, [jobs.TOPIC]).fetchone()
    assert row is not None
    return bool(row[0])
