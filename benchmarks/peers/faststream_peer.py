"""faststream-outbox on asyncpg, with its batched terminal flush."""

from __future__ import annotations

import time

from faststream_outbox import OutboxBroker, make_outbox_table
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import URL, MetaData
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from benchmarks.peers.program import Calls, main

BATCH = 1000
WORKERS = 50


async def _drain(url: str, calls: Calls, jobs: int) -> float:
    metadata = MetaData()
    table = make_outbox_table(metadata, table_name="outbox")
    where = conninfo_to_dict(url)
    engine = create_async_engine(
        URL.create(
            "postgresql+asyncpg",
            username=str(where["user"]),
            password=str(where["password"]) if "password" in where else None,
            database=str(where["dbname"]),
            query={"host": str(where["host"]), "port": str(where.get("port") or 5432)},
        ),
        pool_size=WORKERS + 5,
    )
    broker = OutboxBroker(engine, outbox_table=table)

    @broker.subscriber(
        "noop", max_workers=WORKERS, fetch_batch_size=100, terminal_flush_batch_size=100
    )
    async def noop(number: int) -> None:
        calls.add(number)

    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    async with AsyncSession(engine) as session, session.begin():
        for first in range(0, jobs, BATCH):
            numbers = range(first, min(first + BATCH, jobs))
            await broker.publish_batch(*numbers, queue="noop", session=session)
    started = time.monotonic()
    await broker.start()
    await calls.wait()
    await broker.stop()
    await engine.dispose()
    return started


if __name__ == "__main__":
    main("faststream-outbox", _drain)
