"""E-mail consumer processes, and the orders whose e-mails they send."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing.connection import Connection as Link

import psycopg

from benchmarks import consuming
from benchmarks.crew import cpu_seconds, messages, peak_megabytes, resident_megabytes, run
from consumers.email.application import load_emails
from consumers.email.gateway import EmailGateway
from consumers.email.settings import EmailSettings
from outbox.clock import boot_seconds
from outbox.consumer import Consumer

APP = "shop_example.emails:emails"
TOPIC = "email.order_confirmation"
API_KEY = "re_benchmark_only"
SENDER = "Shop <shop@example.com>"
DEADLINE_SECONDS = 30.0

#: The payload of an order of two lines, as shop_example.orders.confirmation writes it; its e-mail
#: is a request of about 4 KB.
_ORDERS = """
INSERT INTO outbox.job (id, topic, position, effect_key, payload, payload_fingerprint)
SELECT id, %(topic)s, id, 'email-order-' || n, payload::json, sha256(payload::bytea)
FROM (
    SELECT nextval('outbox.job_position') AS id, n,
        '{"order_id": ' || n || ', "placed_at": "2026-01-02T03:04:05+00:00",'
        || ' "customer": {"name": "Ada Okafor", "email": "ada@example.com"}, "lines": ['
        || '{"product": "Teapot, cast iron", "quantity": 1, "unit_price": "49.90",'
        || ' "total": "49.90"}, {"product": "Sencha, 100 g", "quantity": 2,'
        || ' "unit_price": "12.80", "total": "25.60"}], "total": "75.50", "currency": "EUR"}'
        AS payload
    FROM generate_series(1, %(count)s) AS n
) AS made
"""


@dataclass(frozen=True, slots=True)
class Memory:
    """What one process holds now, and what it has held at most."""

    resident_megabytes: float
    peak_megabytes: float

    @classmethod
    def now(cls) -> Memory:
        """Of this process."""
        return cls(resident_megabytes(), peak_megabytes())


@dataclass(frozen=True, slots=True)
class Sent:
    """What one process has sent."""

    seconds: float
    code: int = 0
    cpu_seconds: float = 0.0
    peak_megabytes: float = 0.0


def fill(connection: psycopg.Connection, count: int) -> None:
    """Leave the jobs of ``count`` orders' e-mails."""
    connection.execute(_ORDERS, {"topic": TOPIC, "count": count})


def payloads(connection: psycopg.Connection) -> list[str]:
    """Those of the jobs that are there, as a consumer gets them."""
    rows = connection.execute("SELECT CAST(payload AS text) FROM outbox.job ORDER BY id")
    return [payload for (payload,) in rows]


def consumer(url: str, provider_url: str, concurrency: int) -> Consumer:
    """The e-mail consumer as its command puts it together, with default settings."""
    outbox = consuming.settings()
    email = EmailSettings.load(
        _env_file=None,
        EMAIL_PROVIDER="resend",
        api_url=provider_url,
        api_key=API_KEY,
        EMAIL_FROM=SENDER,
        timeout_seconds=DEADLINE_SECONDS,
    )
    gateway = EmailGateway(
        load_emails(APP), email, max_attempts=outbox.max_attempts, backoff=outbox.backoff
    )
    return Consumer(url, gateway, outbox, concurrency=concurrency)


def drainer(link: Link, provider_url: str, concurrency: int) -> None:
    """Be a consumer process: told a database, it sends all its e-mails."""
    for url in messages(link):
        link.send(run(drain(url, provider_url, concurrency)))


async def drain(url: str, provider_url: str, concurrency: int) -> Sent:
    """Send all that waits."""
    before, started = cpu_seconds(), boot_seconds()
    one = consumer(url, provider_url, concurrency)
    code = await one.run(drain=True, timeout_seconds=consuming.DRAIN_SECONDS_MAX)
    return Sent(boot_seconds() - started, code, cpu_seconds() - before, peak_megabytes())


def runner(link: Link, url: str, provider_url: str, concurrency: int) -> None:
    """Be a consumer process that runs until its parent goes; asked for anything, it sends
    ``Memory``.
    """
    link.send("ready")
    run(consuming.answering(link, consumer(url, provider_url, concurrency), Memory.now))
