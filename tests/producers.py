"""Every kind of connection that ``enqueue`` takes, each behind the same few verbs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any

import psycopg
import sqlalchemy
from psycopg.rows import dict_row, namedtuple_row
from sqlalchemy.ext.asyncio import (
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from outbox import Outbox

TOPIC = "email.order_confirmation"


@dataclass(frozen=True, slots=True)
class Producer:
    """A caller of ``enqueue`` in a transaction of its own.

    ``savepoint(keep=...)`` is a savepoint that is released or rolled back when its block ends.
    """

    caller: Any
    execute: Callable[[str], Awaitable[None]]
    commit: Callable[[], Awaitable[None]]
    rollback: Callable[[], Awaitable[None]]
    savepoint: Callable[..., AbstractAsyncContextManager[None]]

    async def enqueue(self, effect_key: str, outbox: Outbox | None = None, **given: Any) -> int:
        """Enqueue a job, awaiting where this kind of caller has to; returns its id."""
        arguments = {"topic": TOPIC, "payload": {"order_id": 102}} | given
        job_id = (outbox or Outbox()).enqueue(self.caller, effect_key=effect_key, **arguments)
        return int(await job_id if isawaitable(job_id) else job_id)


Kind = Callable[[str], AbstractAsyncContextManager[Producer]]


def sqlalchemy_url(url: str, driver: str) -> str:
    """The same database, as SQLAlchemy reaches it by that driver."""
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def _sync(function: Callable[..., object]) -> Callable[..., Awaitable[None]]:
    async def call(*arguments: object) -> None:
        function(*arguments)

    return call


def _async(function: Callable[..., Awaitable[object]]) -> Callable[..., Awaitable[None]]:
    async def call(*arguments: object) -> None:
        await function(*arguments)

    return call


def _of_sqlalchemy(caller: Any) -> Producer:
    @asynccontextmanager
    async def savepoint(*, keep: bool) -> AsyncIterator[None]:
        nested = caller.begin_nested()
        yield
        (nested.commit if keep else nested.rollback)()

    return Producer(
        caller,
        _sync(lambda query: caller.execute(sqlalchemy.text(query))),
        _sync(caller.commit),
        _sync(caller.rollback),
        savepoint,
    )


def _of_async_sqlalchemy(caller: Any) -> Producer:
    @asynccontextmanager
    async def savepoint(*, keep: bool) -> AsyncIterator[None]:
        nested = await caller.begin_nested()
        yield
        await (nested.commit if keep else nested.rollback)()

    return Producer(
        caller,
        _async(lambda query: caller.execute(sqlalchemy.text(query))),
        _async(caller.commit),
        _async(caller.rollback),
        savepoint,
    )


@asynccontextmanager
async def _a_session(driver: str, url: str) -> AsyncIterator[Producer]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    with Session(engine) as session:
        yield _of_sqlalchemy(session)


@asynccontextmanager
async def _a_scoped_session(driver: str, url: str) -> AsyncIterator[Producer]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    session = scoped_session(sessionmaker(engine))
    yield _of_sqlalchemy(session)
    session.remove()


@asynccontextmanager
async def _a_connection(driver: str, url: str) -> AsyncIterator[Producer]:
    engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    with engine.connect() as connection:
        yield _of_sqlalchemy(connection)


@asynccontextmanager
async def _an_async_session(driver: str, url: str) -> AsyncIterator[Producer]:
    engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield _of_async_sqlalchemy(session)


@asynccontextmanager
async def _an_async_scoped_session(driver: str, url: str) -> AsyncIterator[Producer]:
    engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    session = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.get_running_loop)
    yield _of_async_sqlalchemy(session)
    await session.remove()


@asynccontextmanager
async def _an_async_connection(driver: str, url: str) -> AsyncIterator[Producer]:
    engine = create_async_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    async with engine.connect() as connection:
        yield _of_async_sqlalchemy(connection)


def _of_psycopg(connection: psycopg.Connection[Any]) -> Producer:
    @asynccontextmanager
    async def savepoint(*, keep: bool) -> AsyncIterator[None]:
        # In an idle connection the block would be the transaction itself.
        connection.execute("SELECT 1")
        with connection.transaction(force_rollback=not keep):
            yield

    return Producer(
        connection,
        _sync(connection.execute),
        _sync(connection.commit),
        _sync(connection.rollback),
        savepoint,
    )


def _of_async_psycopg(connection: psycopg.AsyncConnection[Any]) -> Producer:
    @asynccontextmanager
    async def savepoint(*, keep: bool) -> AsyncIterator[None]:
        await connection.execute("SELECT 1")
        async with connection.transaction(force_rollback=not keep):
            yield

    return Producer(
        connection,
        _async(connection.execute),
        _async(connection.commit),
        _async(connection.rollback),
        savepoint,
    )


@asynccontextmanager
async def _a_psycopg_connection(url: str, **given: Any) -> AsyncIterator[Producer]:
    with psycopg.connect(url, **given) as connection:
        yield _of_psycopg(connection)
        connection.rollback()


@asynccontextmanager
async def _a_psycopg_pipeline(url: str) -> AsyncIterator[Producer]:
    with psycopg.connect(url) as connection:
        with connection.pipeline():
            yield _of_psycopg(connection)
        connection.rollback()


@asynccontextmanager
async def _a_psycopg_transaction(url: str, *, pipeline: bool = False) -> AsyncIterator[Producer]:
    """An autocommit connection whose ``with connection.transaction()`` is the transaction."""
    with psycopg.connect(url, autocommit=True) as connection:
        if pipeline:
            with connection.pipeline():
                yield _in_block(connection)
        else:
            yield _in_block(connection)


def _in_block(connection: psycopg.Connection[Any]) -> Producer:
    block = connection.transaction()
    transaction = block.__enter__()

    def end(error: psycopg.Rollback | None = None) -> None:
        block.__exit__(type(error) if error else None, error, None)

    plain = _of_psycopg(connection)
    return Producer(
        connection,
        plain.execute,
        _sync(end),
        _sync(lambda: end(psycopg.Rollback(transaction))),
        plain.savepoint,
    )


@asynccontextmanager
async def _an_async_psycopg_connection(url: str, **given: Any) -> AsyncIterator[Producer]:
    connection = await psycopg.AsyncConnection.connect(url, **given)
    async with connection:
        yield _of_async_psycopg(connection)
        await connection.rollback()


@asynccontextmanager
async def _an_async_psycopg_pipeline(url: str) -> AsyncIterator[Producer]:
    connection = await psycopg.AsyncConnection.connect(url)
    async with connection:
        async with connection.pipeline():
            yield _of_async_psycopg(connection)
        await connection.rollback()


SYNC_DRIVERS = ("psycopg", "psycopg2")
ASYNC_DRIVERS = ("psycopg", "asyncpg")

KINDS: dict[str, Kind] = {
    **{f"Session on {d}": partial(_a_session, d) for d in SYNC_DRIVERS},
    **{f"scoped_session on {d}": partial(_a_scoped_session, d) for d in SYNC_DRIVERS},
    **{f"Connection on {d}": partial(_a_connection, d) for d in SYNC_DRIVERS},
    **{f"AsyncSession on {d}": partial(_an_async_session, d) for d in ASYNC_DRIVERS},
    **{f"async_scoped_session on {d}": partial(_an_async_scoped_session, d) for d in ASYNC_DRIVERS},
    **{f"AsyncConnection on {d}": partial(_an_async_connection, d) for d in ASYNC_DRIVERS},
    "psycopg": _a_psycopg_connection,
    "psycopg with dicts": partial(_a_psycopg_connection, row_factory=dict_row),
    "psycopg with named tuples": partial(_a_psycopg_connection, row_factory=namedtuple_row),
    "psycopg with ClientCursor": partial(
        _a_psycopg_connection, cursor_factory=psycopg.ClientCursor
    ),
    "psycopg with RawCursor": partial(_a_psycopg_connection, cursor_factory=psycopg.RawCursor),
    "psycopg preparing at once": partial(_a_psycopg_connection, prepare_threshold=0),
    "psycopg in a pipeline": _a_psycopg_pipeline,
    "psycopg in a transaction block": _a_psycopg_transaction,
    "psycopg in a block in a pipeline": partial(_a_psycopg_transaction, pipeline=True),
    "async psycopg": _an_async_psycopg_connection,
    "async psycopg with dicts": partial(_an_async_psycopg_connection, row_factory=dict_row),
    "async psycopg in a pipeline": _an_async_psycopg_pipeline,
}
