"""Bare loops that send requests without a database: what the e-mail consumer is held against."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from multiprocessing.connection import Connection as Link

import httpx

from benchmarks.crew import cpu_seconds, messages, peak_megabytes, run
from benchmarks.mailing import API_KEY, APP, DEADLINE_SECONDS, SENDER, TOPIC, Sent
from consumers.email.application import load_emails
from consumers.email.message import Address
from consumers.email.providers.resend import RESEND
from consumers.email.transport import Received, Transport
from outbox.clock import boot_seconds

#: Sends one request under a key.
_Post = Callable[[str, bytes], Awaitable[bool]]
#: The request of each number.
_Requests = Callable[[int], bytes]


def transport(link: Link, provider_url: str, concurrency: int, body: bytes) -> None:
    """Be a loop of the consumer's transport: told a count, it sends as many requests."""
    for count in messages(link):
        link.send(run(_by_transport(provider_url, concurrency, lambda _: body, count)))


def rendering_transport(
    link: Link, provider_url: str, concurrency: int, payloads: Sequence[str]
) -> None:
    """Be the same loop, with each request rendered from an order's payload as it is needed."""
    requests = rendered(payloads)
    for count in messages(link):
        link.send(run(_by_transport(provider_url, concurrency, requests, count)))


def plain_client(link: Link, provider_url: str, concurrency: int, body: bytes) -> None:
    """Be a loop of one plain httpx client, as an application would write it."""
    for count in messages(link):
        link.send(run(_by_client(provider_url, concurrency, lambda _: body, count)))


def rendered(payloads: Sequence[str]) -> _Requests:
    """The very bytes that the consumer sends for these orders, made anew each time."""
    topic, sender = load_emails(APP).topics[TOPIC], Address.parse(SENDER)
    return lambda number: RESEND.encode(topic.message(payloads[number % len(payloads)]), sender)


async def _by_transport(
    provider_url: str, concurrency: int, requests: _Requests, count: int
) -> Sent:
    own = Transport()

    async def post(key: str, body: bytes) -> bool:
        came = await own.post(
            f"{provider_url}{RESEND.facts.path}",
            RESEND.headers(API_KEY, key),
            body,
            deadline_seconds=DEADLINE_SECONDS,
            may_start=lambda: True,
        )
        return isinstance(came, Received) and came.status == 200

    try:
        return await _sending(post, requests, concurrency, count)
    finally:
        await own.close()


async def _by_client(provider_url: str, concurrency: int, requests: _Requests, count: int) -> Sent:
    async with httpx.AsyncClient(timeout=DEADLINE_SECONDS) as client:

        async def post(key: str, body: bytes) -> bool:
            answer = await client.post(
                f"{provider_url}{RESEND.facts.path}",
                headers=RESEND.headers(API_KEY, key),
                content=body,
            )
            return answer.status_code == 200

        return await _sending(post, requests, concurrency, count)


async def _sending(post: _Post, requests: _Requests, concurrency: int, count: int) -> Sent:
    """Send ``count`` requests from ``concurrency`` tasks."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            assert await post(f"bare-{number}", requests(number))

    before, started = cpu_seconds(), boot_seconds()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return Sent(boot_seconds() - started, 0, cpu_seconds() - before, peak_megabytes())
