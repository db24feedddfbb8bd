"""Consumer processes of the library with a no-op effect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection as Link

from benchmarks.crew import (
    Worker,
    cpu_seconds,
    listening,
    messages,
    peak_megabytes,
    resident_megabytes,
    run,
    together,
)
from benchmarks.noop import NoOp
from outbox.clock import boot_seconds
from outbox.consumer import Consumer
from outbox.settings import OutboxSettings

DRAIN_SECONDS_MAX = 600.0
PEAK = "peak"


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain by one process."""

    code: int
    calls: int
    cpu_seconds: float


def settings() -> OutboxSettings:
    """The defaults."""
    return OutboxSettings.load(_env_file=None)


def drainer(link: Link, request_bytes: int, concurrency: int) -> None:
    """Be a process that drains the database it is told, each time as a consumer just started.

    Told ``PEAK``, it says how much memory it has held at most.
    """
    for url in messages(link):
        if url == PEAK:
            link.send(peak_megabytes())
            continue
        before = cpu_seconds()
        gateway = NoOp(request_bytes)
        consumer = Consumer(url, gateway, settings(), concurrency=concurrency)
        code = run(consumer.run(drain=True, timeout_seconds=DRAIN_SECONDS_MAX))
        link.send(Drained(code, gateway.calls, cpu_seconds() - before))


def drain(workers: list[Worker], url: str) -> tuple[float, int]:
    """Let these processes drain a database together; the seconds it took, and the calls."""
    started = boot_seconds()
    drained: list[Drained] = together(workers, url)
    seconds = boot_seconds() - started
    assert {one.code for one in drained} == {0}, drained
    return seconds, sum(one.calls for one in drained)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Each call of a consumer since the last look: key and moment (boot clock); and its memory."""

    calls: list[tuple[str, float]]
    megabytes: float


def recorder(link: Link, url: str, request_bytes: int, concurrency: int) -> None:
    """Be a consumer that runs until its parent goes; asked for anything, it sends ``Arrivals``."""
    link.send("ready")
    calls: list[tuple[str, float]] = []
    gateway = NoOp(request_bytes, lambda key: calls.append((key, boot_seconds())))
    consumer = Consumer(url, gateway, settings(), concurrency=concurrency)

    def answer() -> Arrivals:
        came = calls.copy()
        calls.clear()
        return Arrivals(came, resident_megabytes())

    run(answering(link, consumer, answer))


async def answering(link: Link, consumer: Consumer, answer: Callable[[], object]) -> None:
    """Run a consumer until the parent has gone; whatever it says before, it gets an answer."""
    with listening(link, answer) as gone:
        await _until(gone, consumer)


async def _until(stop: asyncio.Event, consumer: Consumer) -> None:
    """Run a consumer until told to stop; whatever ends it before is raised."""
    running = asyncio.create_task(consumer.run())
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    consumer.stop()
    await running


def arrivals(worker: Worker, expected: int, seconds_max: float = 600.0) -> list[tuple[str, float]]:
    """Wait until a recorder has made at least ``expected`` calls since the last look."""
    came: list[tuple[str, float]] = []
    deadline = boot_seconds() + seconds_max
    while len(came) < expected:
        assert boot_seconds() < deadline, f"{len(came)} of {expected} calls"
        time.sleep(0.1)
        came += seen(worker).calls
    return came


def seen(worker: Worker) -> Arrivals:
    """What a recorder has to say now."""
    worker.tell("arrivals")
    answer: Arrivals = worker.receive()
    return answer
