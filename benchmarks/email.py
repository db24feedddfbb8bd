"""E-mails per second: the real consumer, and bare loops of its transport without a database."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from benchmarks import mailing
from benchmarks.crew import Worker, crew
from benchmarks.oracle import exactly_once
from benchmarks.provider import Provider, provider
from benchmarks.record import Figure, Line, ratio
from benchmarks.server import Server
from benchmarks.turns import in_turns
from consumers.email.application import load_emails
from consumers.email.message import Address
from consumers.email.providers.resend import RESEND

CONCURRENCY = 50
_PAYLOAD = "SELECT payload::text FROM outbox.job LIMIT 1"


def run(server: Server, *, full: bool) -> Iterator[Line]:
    """All three send to the same provider process, in turns."""
    count, plain_count, rounds = (10_000, 2_000, 5) if full else (1_000, 300, 3)
    body = _request(server)
    with provider() as there:
        bare = (there.url, CONCURRENCY, body)
        with (
            crew(mailing.drainer, (there.url, CONCURRENCY)) as (consumer,),
            crew(mailing.bare_transport, bare) as (transport,),
            crew(mailing.plain_client, bare) as (plain,),
        ):
            rates = in_turns(
                {
                    "consumer": lambda: _consume(server, consumer, there, count),
                    "bare transport": lambda: _bare(transport, there, count),
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
            "consumer / bare transport": ratio(rates["consumer"], rates["bare transport"]),
            "consumer / plain httpx client": ratio(rates["consumer"], rates["plain httpx client"]),
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


def _request(server: Server) -> bytes:
    """The very bytes that the consumer sends for one of these orders."""
    with server.database() as url, psycopg.connect(url) as connection:
        mailing.fill(connection, 1)
        row = connection.execute(_PAYLOAD).fetchone()
    assert row is not None
    message = load_emails(mailing.APP).topics[mailing.TOPIC].message(row[0])
    return RESEND.encode(message, Address.parse("Shop <shop@example.com>"))
