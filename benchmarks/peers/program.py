"""What the programs of the Python peers have in common: their arguments and their answer."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from importlib.metadata import version
from typing import Any

import psycopg

from benchmarks.crew import loop_factory

#: Longer than the slowest peer needs for a full run.
SECONDS_MAX = 600.0
ROW = "INSERT INTO bench_row (text) VALUES ('a row of the business')"


class Calls:
    """What a peer's handler has been called with."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._seen: Counter[int] = Counter()
        self.all_there = asyncio.Event()
        self.ended = 0.0

    def add(self, number: int) -> None:
        """Count one."""
        self._seen[number] += 1
        if len(self._seen) == self._expected:
            self.ended = time.monotonic()
            self.all_there.set()

    async def wait(self) -> None:
        """Wait until each job has been seen."""
        async with asyncio.timeout(SECONDS_MAX):
            await self.all_there.wait()

    def answer(self, started: float) -> dict[str, object]:
        """From the worker's start to the last handler's call; its completion comes on top."""
        return {"seconds": self.ended - started, "calls": self._seen.total()}


#: Fills a queue with jobs numbered from 0 and works them off.
Drain = Callable[[str, Calls, int], Awaitable[float]]
#: Leaves one job in the transaction of the connection given.
Enqueue = Callable[["psycopg.AsyncConnection"], Awaitable[object]]
#: Makes the peer's tables.
Install = Callable[[str], Coroutine[Any, Any, None]]
#: Hands over how the peer enqueues.
Producer = Callable[[str], Awaitable[Enqueue]]


def main(
    package: str, drain: Drain, install: Install | None = None, producer: Producer | None = None
) -> None:
    """Do what the command line says, for the peer that comes in ``package``."""
    what, url, amount = sys.argv[1:]
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if what == "drain":
            answer: dict[str, object] = runner.run(_drain(drain, url, int(amount)))
            answer["version"] = f"{version(package)} (Python {platform.python_version()})"
        elif install is not None and what == "install":
            runner.run(install(url))
            answer = {}
        elif producer is not None:
            answer = runner.run(_commit(producer, url, float(amount)))
        else:
            answer = {"absent": "it can't enqueue in a psycopg transaction"}
    print(json.dumps(answer))


async def _drain(drain: Drain, url: str, jobs: int) -> dict[str, object]:
    calls = Calls(jobs)
    started = await drain(url, calls, jobs)
    return calls.answer(started)


async def _commit(producer: Producer, url: str, seconds: float) -> dict[str, object]:
    """Commit a one-row transaction, without a job and with one, for some seconds each."""
    enqueue = await producer(url)
    done = {"without": 0, "with": 0}
    async with await psycopg.AsyncConnection.connect(url) as connection:

        async def commit(kind: str) -> None:
            await connection.execute(ROW)
            if kind == "with":
                await enqueue(connection)
            await connection.commit()

        for kind in done:
            await commit(kind)  # plans and caches are there before the clock runs, as with ours
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                await commit(kind)
                done[kind] += 1
    return dict(done)
