"""pgqueuer on asyncpg; its psycopg driver is in the program beside."""

from __future__ import annotations

import time

import asyncpg
import psycopg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, Driver, PsycopgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode
from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers.program import Calls, main

BATCH = 100


async def on_asyncpg(url: str, calls: Calls, jobs: int) -> float:
    """Drain by its asyncpg driver."""
    where = conninfo_to_dict(url)
    connection = await asyncpg.connect(
        host=where.get("host"),
        port=where.get("port"),
        user=where.get("user"),
        password=where.get("password"),
        database=where.get("dbname"),
    )
    return await _drain(AsyncpgDriver(connection), calls, jobs)


async def on_psycopg(url: str, calls: Calls, jobs: int) -> float:
    """Drain by its psycopg driver."""
    connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
    return await _drain(PsycopgDriver(connection), calls, jobs)


async def _drain(driver: Driver, calls: Calls, jobs: int) -> float:
    queries = Queries(driver)
    await queries.install()
    numbers: list[bytes | None] = [str(number).encode() for number in range(jobs)]
    await queries.enqueue(["noop"] * jobs, numbers, [0] * jobs)
    worker = PgQueuer(driver)

    @worker.entrypoint("noop")
    async def noop(job: Job) -> None:
        calls.add(int(job.payload or b"0"))

    started = time.monotonic()
    await worker.run(batch_size=BATCH, mode=QueueExecutionMode.drain)
    return started


if __name__ == "__main__":
    main("pgqueuer", on_asyncpg)
