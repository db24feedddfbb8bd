"""Consumer processes of the library with a no-op effect."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from multiprocessing.connection import Connection as Link

from benchmarks.crew import Worker, cpu_seconds, messages, peak_megabytes, run, together
from benchmarks.noop import NoOp
from outbox.clock import boot_seconds
from outbox.consumer import Consumer
from outbox.settings import OutboxSettings

DRAIN_SECONDS_MAX = 1800.0


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain by one process."""

    code: int
    calls: int
    cpu_seconds: float
    peak_megabytes: float


def settings() -> OutboxSettings:
    """The defaults."""
    return OutboxSettings.load(_env_file=None)


def drainer(link: Link, request_bytes: int, concurrency: int) -> None:
    """Be a process that drains the database it is told, each time as a consumer just started."""
    for url in messages(link):
        before = cpu_seconds()
        gateway = NoOp(request_bytes)
        consumer = Consumer(url, gateway, settings(), concurrency=concurrency)
        code = run(consumer.run(drain=True, timeout_seconds=DRAIN_SECONDS_MAX))
        link.send(Drained(code, gateway.calls, cpu_seconds() - before, peak_megabytes()))


def drain(workers: list[Worker], url: str) -> tuple[float, int]:
    """Let these processes drain a database together; the seconds it took, and the calls."""
    started = boot_seconds()
    drained: list[Drained] = together(workers, url)
    seconds = boot_seconds() - started
    assert {one.code for one in drained} == {0}, drained
    return seconds, sum(one.calls for one in drained)


async def until_stopped(link: Link, consumer: Consumer) -> None:
    """Run a consumer until the parent says anything, or has gone."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(link.fileno(), stop.set)
    running = asyncio.create_task(consumer.run())
    await stop.wait()
    asyncio.get_running_loop().remove_reader(link.fileno())
    consumer.stop()
    await running
