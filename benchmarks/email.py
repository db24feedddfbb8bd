"""E-mails per second: the real consumer, and bare loops of its transport without a database."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from benchmarks import bare, mailing
from benchmarks.crew import Worker, crew
from benchmarks.oracle import exactly_once
from benchmarks.provider import Provider, provider
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from benchmarks.turns import in_turns

CONCURRENCY = 50
_CONSUMER = "consumer"


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """All send to the same provider process, in turns."""
    count, plain_count, rounds = (10_000, 2_000, 5) if full else (1_000, 300, 3)
    payloads = _payloads(server, count)
    body = bare.rendered(payloads)(0)
    with provider() as there:
        to = (there.url, CONCURRENCY)
        with (
            crew(mailing.drainer, to) as (consumer,),
            crew(bare.transport, (*to, body)) as (transport,),
            crew(bare.rendering_transport, (*to, payloads)) as (rendering,),
            crew(bare.plain_client, (*to, body)) as (plain,),
        ):
            rates = in_turns(
                {
                    _CONSUMER: lambda: _consume(server, consumer, there, count),
                    "bare transport": lambda: _bare(transport, there, count),
                    "bare transport that renders": lambda: _bare(rendering, there, count),
                    "plain httpx client": lambda: _bare(plain, there, plain_count),
                },
                rounds,
            )
    yield Line(
        "email",
        f"{CONCURRENCY} in flight",
        {name: Figure("e-mails/s", values) for name, values in rates.items()},
        checked=f"{count} e-mails a round, each arrived once and is in the ledger once",
        ratios={
            f"{_CONSUMER} / {name}": ratio(rates[_CONSUMER], values)
            for name, values in rates.items()
            if name != _CONSUMER
        },
        settings={"concurrency": CONCURRENCY, "request_bytes": len(body), "rounds": rounds},
    )


def _consume(server: Server, consumer: Worker, there: Provider, count: int) -> float:
    with server.database() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            mailing.fill(connection, count)
            connection.execute("VACUUM ANALYZE outbox.job")
        consumer.tell(url)
        sent: mailing.Sent = consumer.receive()
        assert sent.code == 0
        exactly_once(url, count, there.requests(count))
        return count / sent.seconds


def _bare(worker: Worker, there: Provider, count: int) -> float:
    worker.tell(count)
    sent: mailing.Sent = worker.receive()
    assert there.requests(count) == count
    return count / sent.seconds


def _payloads(server: Server, count: int) -> list[str]:
    with server.database() as url, psycopg.connect(url) as connection:
        mailing.fill(connection, count)
        return mailing.payloads(connection)
