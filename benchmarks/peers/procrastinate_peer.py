"""procrastinate: fifty at a time, done jobs deleted."""

from __future__ import annotations

import time
from typing import Any

import procrastinate
import psycopg

from benchmarks.peers.program import Calls, Enqueue, main

BATCH = 1000


def _app(url: str) -> procrastinate.App:
    return procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=url, min_size=4, max_size=20)
    )


def _arguments(number: int) -> dict[str, Any]:
    return {"number": number}


async def _drain(url: str, calls: Calls, jobs: int) -> float:
    app = _app(url)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        calls.add(number)

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for first in range(0, jobs, BATCH):
            numbers = range(first, min(first + BATCH, jobs))
            await noop.batch_defer_async(*[_arguments(number) for number in numbers])
        started = time.monotonic()
        await app.run_worker_async(
            concurrency=50,
            wait=False,
            listen_notify=False,
            delete_jobs="successful",
            install_signal_handlers=False,
        )
    return started


async def _install(url: str) -> None:
    app = _app(url)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def _producer(url: str) -> Enqueue:
    app = _app(url)

    @app.task(name="noop")
    async def noop(number: int) -> None:
        """Never run here."""

    await app.open_async()

    async def enqueue(connection: psycopg.AsyncConnection) -> object:
        return await noop.configure(connection=connection).defer_async(number=1)

    return enqueue


if __name__ == "__main__":
    main("procrastinate", _drain, _install, _producer)
