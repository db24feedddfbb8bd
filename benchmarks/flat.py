"""Whether the rate holds: beside open snapshots and writers, late commits, foreign jobs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import psycopg

from benchmarks import consuming, jobs, pages
from benchmarks.crew import Worker, crew
from benchmarks.latency import quantile
from benchmarks.oracle import exactly_once
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from benchmarks.turns import in_turns
from outbox import Outbox
from outbox.clock import boot_seconds

CONCURRENCY = 200
REQUEST_BYTES = 4096


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """One consumer process with a request of 4 KB throughout."""
    yield from _held_open(server, full=full)
    yield _trickle(server, seconds=600 if full else 12, window=60 if full else 4)
    yield _late_bulk(server, 100_000 if full else 10_000, rounds=3 if full else 1)
    yield _unserved(server, count=20_000 if full else 4_000, others=300_000 if full else 60_000)


@contextmanager
def _snapshot(url: str) -> Iterator[None]:
    """Another session with a REPEATABLE READ snapshot."""
    with psycopg.connect(url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute("SELECT count(*) FROM outbox.job")
        yield


@contextmanager
def _writer(url: str) -> Iterator[None]:
    """Another session that has written and not committed."""
    with psycopg.connect(url) as writer:
        writer.execute("CREATE TABLE held_open (id bigint)")
        yield
        writer.rollback()


_Held = Callable[[str], AbstractContextManager[None]]
_HELD: dict[str, _Held] = {
    "nothing held": lambda _: nullcontext(),
    "snapshot held": _snapshot,
    "writer held open": _writer,
}


def _held_open(server: Server, *, full: bool) -> Iterator[Line]:
    """Ten rounds beside each, in turns; and as many bytes in new pages of files, by themselves."""
    count = 50_000 if full else 2_000
    ground = pages.all_new if full else nullcontext
    contenders = {
        case: partial(_ten_rounds, server, count, held, ground) for case, held in _HELD.items()
    }
    for case, runs in in_turns(contenders, 3 if full else 1).items():
        yield _rounds(count, case, runs)
    if full:
        yield _new_pages(megabytes=300)


def _new_pages(megabytes: int) -> Line:
    at_hand = pages.rates(rounds=10, megabytes=megabytes)
    with pages.all_new():
        new = pages.rates(rounds=10, megabytes=megabytes)
    return Line(
        "flat",
        f"new pages of files, {megabytes} MB ten times, and nothing else",
        {
            "as it comes": Figure("MB/s", at_hand),
            "once the memory at hand is used up": Figure("MB/s", new),
        },
        checked="nothing: no job runs",
        settings={"megabytes": megabytes},
        words="values are the ten rounds, in order",
    )


def _ten_rounds(
    server: Server, count: int, held: _Held, ground: Callable[[], AbstractContextManager[None]]
) -> list[float]:
    """By the same consumer, from the first to the last call of each."""
    with (
        ground(),
        _consumer(server, 10 * count) as (url, worker),
        held(url),
        psycopg.connect(url, autocommit=True) as connection,
    ):
        return [_round(connection, worker, count, f"r{n}-") for n in range(10)]


def _rounds(count: int, case: str, runs: list[list[float]]) -> Line:
    """What became of the rate, run by run."""
    ten = [statistics.median(rates) for rates in zip(*runs, strict=True)]
    firsts, lasts = [sum(rates[:3]) for rates in runs], [sum(rates[-3:]) for rates in runs]
    return Line(
        "flat",
        f"ten rounds of {count}, {case}",
        {"rate": Figure("jobs/s", ten)},
        checked=f"each of the {10 * count} jobs of a run ran exactly once",
        ratios={
            "last / first": ratio([rates[-1] for rates in runs], [rates[0] for rates in runs]),
            "last three / first three": ratio(lasts, firsts),
        },
        settings={
            "jobs": count, "request_bytes": REQUEST_BYTES, "concurrency": CONCURRENCY,
            "runs": len(runs),
        },
        words="values are the ten rounds in order, each the median of all runs",
    )  # fmt: skip


@contextmanager
def _consumer(server: Server, count: int) -> Iterator[tuple[str, Worker]]:
    """A database, and a running consumer process; in the end, each job has run exactly once."""
    with server.database() as url:
        with crew(consuming.recorder, (url, REQUEST_BYTES, CONCURRENCY)) as (worker,):
            yield url, worker
            surplus = consuming.seen(worker).calls
        exactly_once(url, count, count + len(surplus))


def _round(connection: psycopg.Connection, worker: Worker, count: int, prefix: str) -> float:
    with connection.transaction():
        jobs.fill(connection, count, prefix=prefix)
        jobs.wake(connection)
    came = consuming.arrivals(worker, count)
    assert len({key for key, _ in came}) == len(came) == count
    moments = [moment for _, moment in came]
    return count / (max(moments) - min(moments))


def _trickle(server: Server, *, seconds: int, window: int) -> Line:
    """200 orders a second, one transaction each, beside a held snapshot."""
    with (
        _consumer(server, 200 * seconds) as (url, worker),
        _snapshot(url),
        psycopg.connect(url) as connection,
    ):
        committed = dict(_orders(connection, seconds, per_second=200))
        came = consuming.arrivals(worker, len(committed))
    assert len({key for key, _ in came}) == len(came) == len(committed)
    began = min(committed.values())
    delays = sorted((committed[key] - began, moment - committed[key]) for key, moment in came)
    first = [1000 * delay for at, delay in delays if at < window]
    last = [1000 * delay for at, delay in delays if at >= seconds - window]
    p99 = quantile(first, 0.99), quantile(last, 0.99)
    return Line(
        "flat",
        f"trickle of 200/s for {seconds} s, snapshot held",
        {
            f"p99, first {window} s": Figure("ms", [p99[0]]),
            f"p99, last {window} s": Figure("ms", [p99[1]]),
            "p50, whole run": Figure("ms", [quantile([1000 * d for _, d in delays], 0.5)]),
        },
        checked=f"each of the {len(came)} jobs ran exactly once",
        ratios={"p99 last / first": Figure("ratio", [p99[1] / p99[0]])},
        settings={"per_second": 200, "seconds": seconds, "request_bytes": REQUEST_BYTES},
    )


def _orders(
    connection: psycopg.Connection, seconds: int, per_second: int
) -> Iterator[tuple[str, float]]:
    """Enqueue at a steady pace; where the machine falls behind, it catches up."""
    outbox, started = Outbox(), boot_seconds()
    for number in range(seconds * per_second):
        time.sleep(max(0.0, started + number / per_second - boot_seconds()))
        key = f"order-{number}"
        outbox.enqueue(connection, jobs.TOPIC, {"order_id": number}, effect_key=key)
        moment = boot_seconds()
        connection.commit()
        yield key, moment


def _late_bulk(server: Server, bulk: int, rounds: int) -> Line:
    """A bulk whose early positions are committed late, beside a queue that never gets empty."""
    pairs = [_one_late_bulk(server, bulk) for _ in range(rounds)]
    normal, late = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    return Line(
        "flat",
        f"bulk of {bulk} that commits late, beside a full queue",
        {
            "normal rate": Figure("jobs/s", normal),
            "bulk, from its commit to its last call": Figure("jobs/s", late),
        },
        checked="each of the jobs ran exactly once",
        ratios={"bulk / normal": ratio(late, normal)},
        settings={"bulk": bulk, "request_bytes": REQUEST_BYTES, "rounds": rounds},
    )


def _one_late_bulk(server: Server, bulk: int) -> tuple[float, float]:
    with (
        # The late bulk, one of the same size before it, and twice as many to be busy with.
        _consumer(server, 4 * bulk) as (url, worker),
        psycopg.connect(url) as late,
        psycopg.connect(url, autocommit=True) as connection,
    ):
        jobs.fill(late, bulk, prefix="late-")
        normal = _round(connection, worker, bulk, "normal-")
        jobs.fill(connection, 2 * bulk, prefix="full-")
        # The consumer is well inside the full queue when the bulk appears below its floor.
        before = consuming.arrivals(worker, bulk // 10)
        committed = boot_seconds()
        late.commit()
        came = before + consuming.arrivals(worker, 3 * bulk - len(before))
        assert len({key for key, _ in came}) == len(came) == 3 * bulk
        last = max(moment for key, moment in came if key.startswith("late-"))
        return normal, bulk / (last - committed)


def _unserved(server: Server, *, count: int, others: int) -> Line:
    """The rate of a drain, with and without the ready jobs of a topic that nobody here serves."""
    with crew(consuming.drainer, (REQUEST_BYTES, CONCURRENCY)) as workers:
        rates = in_turns(
            {
                "without": partial(_rate_beside, server, workers, count, 0),
                "with": partial(_rate_beside, server, workers, count, others),
            },
            rounds=5,
        )
    return Line(
        "flat",
        f"{others} ready jobs of a topic that nobody serves",
        {name: Figure("jobs/s", values) for name, values in rates.items()},
        checked=f"each of {count} jobs a round ran exactly once",
        ratios={"with / without": ratio(rates["with"], rates["without"])},
        settings={"jobs": count, "others": others, "request_bytes": REQUEST_BYTES},
    )


def _rate_beside(server: Server, workers: list[Worker], count: int, others: int) -> float:
    with server.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            if others:
                jobs.fill(connection, others, prefix="other-", topic="bench.unserved")
            jobs.fill(connection, count)
            connection.execute("VACUUM ANALYZE outbox.job")
            # Writing the others out is not the drain's burden: they would lie there long since.
            connection.execute("CHECKPOINT")
        seconds, calls = consuming.drain(workers, url)
        exactly_once(url, count, calls, keys="k-%")
    return count / seconds
