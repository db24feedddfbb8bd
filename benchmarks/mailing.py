"""E-mail consumer processes, and the bare loops that they are held against."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Link

import httpx
import psycopg

from benchmarks import consuming
from benchmarks.crew import cpu_seconds, messages, peak_megabytes, run
from consumers.email.application import load_emails
from consumers.email.gateway import EmailGateway
from consumers.email.providers.resend import RESEND
from consumers.email.settings import EmailSettings
from consumers.email.transport import Received, Transport
from outbox.clock import boot_seconds
from outbox.consumer import Consumer

APP = "shop_example.emails:emails"
TOPIC = "email.order_confirmation"
API_KEY = "re_benchmark_only"
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
class Sent:
    """What one process has sent."""

    seconds: float
    code: int = 0
    cpu_seconds: float = 0.0
    peak_megabytes: float = 0.0


def fill(connection: psycopg.Connection, count: int) -> None:
    """Leave the jobs of ``count`` orders' e-mails."""
    connection.execute(_ORDERS, {"topic": TOPIC, "count": count})


def consumer(url: str, provider_url: str, concurrency: int) -> Consumer:
    """The e-mail consumer as its command puts it together, with default settings."""
    outbox = consuming.settings()
    email = EmailSettings.load(
        _env_file=None,
        EMAIL_PROVIDER="resend",
        api_url=provider_url,
        api_key=API_KEY,
        EMAIL_FROM="Shop <shop@example.com>",
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
    """Be a consumer process that runs until it is told to stop."""
    link.send("ready")
    run(consuming.until_stopped(link, consumer(url, provider_url, concurrency)))


def bare_transport(link: Link, provider_url: str, concurrency: int, body: bytes) -> None:
    """Be a bare loop of the consumer's transport: told a count, it sends as many requests."""
    for count in messages(link):
        link.send(run(_bare(provider_url, concurrency, body, count)))


async def _bare(provider_url: str, concurrency: int, body: bytes, count: int) -> Sent:
    transport = Transport()

    async def post(key: str) -> bool:
        came = await transport.post(
            f"{provider_url}{RESEND.facts.path}",
            RESEND.headers(API_KEY, key),
            body,
            deadline_seconds=DEADLINE_SECONDS,
            may_start=lambda: True,
        )
        return isinstance(came, Received) and came.status == 200

    try:
        return await _sending(post, concurrency, count)
    finally:
        await transport.close()


def plain_client(link: Link, provider_url: str, concurrency: int, body: bytes) -> None:
    """Be a bare loop of one plain httpx client, as an application would write it."""
    for count in messages(link):
        link.send(run(_plain(provider_url, concurrency, body, count)))


async def _plain(provider_url: str, concurrency: int, body: bytes, count: int) -> Sent:
    async with httpx.AsyncClient(timeout=DEADLINE_SECONDS) as client:

        async def post(key: str) -> bool:
            answer = await client.post(
                f"{provider_url}{RESEND.facts.path}",
                headers=RESEND.headers(API_KEY, key),
                content=body,
            )
            return answer.status_code == 200

        return await _sending(post, concurrency, count)


async def _sending(post: Callable[[str], Awaitable[bool]], concurrency: int, count: int) -> Sent:
    """Send ``count`` requests from ``concurrency`` tasks."""
    keys = iter(f"bare-{number}" for number in range(count))

    async def work() -> None:
        for key in keys:
            assert await post(key)

    before, started = cpu_seconds(), boot_seconds()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return Sent(boot_seconds() - started, 0, cpu_seconds() - before, peak_megabytes())
