"""What an e-mail costs: statements, round trips, WAL, dead rows, buffers, memory, CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection as Link

import psycopg
from psycopg.rows import class_row

from benchmarks import mailing
from benchmarks.counting import counted
from benchmarks.crew import Worker, crew, messages
from benchmarks.crew import run as run_loop
from benchmarks.oracle import exactly_once
from benchmarks.provider import Provider, provider
from benchmarks.record import Figure, Line
from benchmarks.server import Server

CONCURRENCY = 50
#: All tables of the library, their TOAST included. What a session has counted arrives when it ends.
_USED = """
SELECT CAST(pg_current_wal_insert_lsn() - '0/0' AS bigint) AS wal_bytes,
    CAST(sum(n_tup_upd + n_tup_del) AS bigint) AS dead_rows,
    CAST(sum(n_tup_hot_upd) AS bigint) AS hot_updates,
    CAST(sum(n_tup_upd) AS bigint) AS updates,
    CAST(sum(heap_blks_hit + heap_blks_read + coalesce(idx_blks_hit + idx_blks_read, 0)) AS bigint)
        AS buffers
FROM pg_stat_all_tables
JOIN pg_statio_all_tables USING (relid)
WHERE relid IN (
    SELECT oid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
    UNION
    SELECT reltoastrelid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace
)
"""


@dataclass(frozen=True, slots=True)
class Used:
    """What the server has counted so far."""

    wal_bytes: int
    dead_rows: int
    hot_updates: int
    updates: int
    buffers: int


@dataclass(frozen=True, slots=True)
class Sending:
    """What the consumer's process has counted."""

    sent: mailing.Sent
    statements: dict[str, int]
    round_trips: int


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """Of the real e-mail consumer, fifty in flight."""
    count, rounds = (20_000, 3) if full else (1_000, 2)
    with provider() as there:
        each = [_costs(server, there, count) for _ in range(rounds)]
    yield Line(
        "cost",
        f"per e-mail, {CONCURRENCY} in flight",
        {name: Figure(_UNITS[name], [costs[name] for costs in each]) for name in _UNITS},
        checked=f"{count} e-mails a round, each arrived once and is in the ledger once",
        settings={"emails": count, "rounds": rounds, "concurrency": CONCURRENCY},
        words="consuming alone; enqueueing costs one more statement, without a round trip of its "
        "own where the caller pipelines",
    )


_UNITS = {
    "statements": "per e-mail",
    "round trips": "per e-mail",
    "WAL": "bytes per e-mail",
    "dead rows": "per e-mail",
    "buffers": "per e-mail",
    "HOT share of updates": "share",
    "CPU of the consumer": "s per 1,000 e-mails",
    "peak memory of the consumer": "MB",
}


def _costs(server: Server, there: Provider, count: int) -> dict[str, float]:
    # A process of its own each time: its peak of memory is not another round's.
    with server.database() as url, crew(counting_drainer, (there.url,)) as (worker,):
        with psycopg.connect(url, autocommit=True) as connection:
            mailing.fill(connection, count)
            connection.execute("VACUUM ANALYZE outbox.job")
            before = _used(connection)
            sending = _send(worker, url)
            after = _used(connection)
        exactly_once(url, count, there.requests(count))
    used = {f.name: getattr(after, f.name) - getattr(before, f.name) for f in fields(Used)}
    return {
        "statements": sum(sending.statements.values()) / count,
        "round trips": sending.round_trips / count,
        "WAL": used["wal_bytes"] / count,
        "dead rows": used["dead_rows"] / count,
        "buffers": used["buffers"] / count,
        "HOT share of updates": used["hot_updates"] / used["updates"],
        "CPU of the consumer": 1000 * sending.sent.cpu_seconds / count,
        "peak memory of the consumer": sending.sent.peak_megabytes,
    }


def _send(worker: Worker, url: str) -> Sending:
    worker.tell(url)
    sending: Sending = worker.receive()
    assert sending.sent.code == 0
    return sending


def _used(connection: psycopg.Connection) -> Used:
    connection.execute("SELECT pg_stat_force_next_flush()")
    with connection.cursor(row_factory=class_row(Used)) as cursor:
        used = cursor.execute(_USED).fetchone()
    assert used is not None
    return used


def counting_drainer(link: Link, provider_url: str) -> None:
    """Be a consumer process that counts what it sends to the database."""
    for url in messages(link):
        with counted() as traffic:
            sent = run_loop(mailing.drain(url, provider_url, CONCURRENCY))
        link.send(Sending(sent, dict(traffic.statements), traffic.round_trips))
