"""oban: one queue with room for fifty."""

from __future__ import annotations

import time
from typing import Any

import psycopg
from oban import Oban, worker
from oban.job import Job
from oban.schema import install

from benchmarks.peers.program import Calls, Enqueue, main

LIMIT = 50
BATCH = 1000


async def _drain(url: str, calls: Calls, jobs: int) -> float:
    @worker(queue="default")
    class NoOp:
        async def process(self, job: Job) -> None:
            calls.add(job.args["number"])

    noop: Any = NoOp  # the decorator has given it a constructor of jobs
    pool = await Oban.create_pool(url)
    await install(pool)
    client = Oban(pool=pool, name="client")
    for first in range(0, jobs, BATCH):
        numbers = range(first, min(first + BATCH, jobs))
        await client.enqueue_many(noop.new({"number": number}) for number in numbers)
    started = time.monotonic()
    async with Oban(pool=pool, queues={"default": LIMIT}):
        await calls.wait()
    await pool.close()
    return started


async def _install(url: str) -> None:
    pool = await Oban.create_pool(url)
    await install(pool)
    await pool.close()


async def _producer(url: str) -> Enqueue:
    @worker(queue="default")
    class NoOp:
        async def process(self, job: Job) -> None:
            """Never run here."""

    noop: Any = NoOp
    client = Oban(pool=await Oban.create_pool(url), name="client")

    async def enqueue(connection: psycopg.AsyncConnection) -> object:
        return await client.enqueue(noop.new({"number": 1}), conn=connection)

    return enqueue


if __name__ == "__main__":
    main("oban", _drain, _install, _producer)
