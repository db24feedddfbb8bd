"""Promise 13: no transaction is open during a call to the outside."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

from outbox import Outbox
from tests.promises.conftest import Tables
from tests.promises.scripted import ANSWER_LOST, TOPIC, ScriptedGateway, Step, consumer, drain
from tests.waiting import aeventually

if TYPE_CHECKING:
    from tests.databases import Databases

_OURS = """
SELECT application_name, state, xact_start IS NOT NULL AS in_transaction,
    EXISTS (
        SELECT FROM pg_locks JOIN pg_class ON pg_class.oid = pg_locks.relation
        WHERE pg_locks.pid = activity.pid AND relnamespace = 'outbox'::regnamespace
    ) AS holds_locks
FROM pg_stat_activity AS activity
WHERE application_name LIKE 'outbox %%' AND datname = current_database()
"""
ISOLATION = ["read committed", "repeatable read", "serializable"]


@pytest.mark.parametrize("isolation", ISOLATION)
async def test_during_a_call_all_our_sessions_are_idle_and_hold_no_lock(
    own_database_url: str, databases: Databases, isolation: str
) -> None:
    """Asked again and again while calls are under way, first ones and repeats (case-66)."""
    gateway = ScriptedGateway()
    sessions: list[int] = []
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)
        name = connection.info.dbname
        connection.execute(
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{isolation}'".encode()
        )

        async def look() -> None:
            # Heartbeats and polls pass: what lasts longer than one of them is a transaction
            # that somebody has left open.
            sessions.append(len(await aeventually(lambda: _all_idle(tables), timeout=1)))

        gateway.plan("k-0", ANSWER_LOST)
        gateway.otherwise = Step(accepts=True, during=look)
        with psycopg.connect(own_database_url) as producer:
            for n in range(3):
                Outbox().enqueue(producer, TOPIC, {}, effect_key=f"k-{n}")
        assert await drain(own_database_url, gateway) == 0
    assert len(gateway.calls) == 4
    # Claims, begins and heartbeats at least; the first call comes before the first settling.
    assert len(sessions) == 3
    assert min(sessions) >= 3


async def test_a_long_call_leaves_the_horizon_of_vacuum_alone(own_database_url: str) -> None:
    """While a call lasts, none of our sessions keeps an old snapshot or transaction id."""
    gateway = ScriptedGateway()
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        tables = Tables(connection)

        async def others_write_meanwhile() -> None:
            start = _horizon(tables)
            for _ in range(5):
                connection.execute("CREATE TABLE IF NOT EXISTS elsewhere (n int)")
                connection.execute("INSERT INTO elsewhere VALUES (1)")
            await aeventually(lambda: _true(_horizon(tables) > start), timeout=2)

        gateway.plan("k", Step(accepts=True, during=others_write_meanwhile))
        with psycopg.connect(own_database_url) as producer:
            Outbox().enqueue(producer, TOPIC, {}, effect_key="k")
        assert await drain(own_database_url, gateway) == 0
    assert gateway.accepted["k"] == 1


async def test_a_server_that_ends_idle_transactions_at_once_disturbs_no_call(
    own_database_url: str,
) -> None:
    """idle_in_transaction_session_timeout of 100 ms, a call of 500: nothing is open to be ended."""
    gateway = ScriptedGateway()
    with psycopg.connect(own_database_url, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(
            f'ALTER DATABASE "{name}" SET idle_in_transaction_session_timeout = 100'.encode()
        )
        with connection.transaction():
            Outbox().enqueue(connection, TOPIC, {}, effect_key="k")
    gateway.plan("k", Step(accepts=True, during=lambda: asyncio.sleep(0.5)))
    one = consumer(own_database_url, gateway)
    assert await one.run(drain=True, timeout_seconds=10) == 0
    assert len(gateway.calls) == 1


async def _all_idle(tables: Tables) -> list[dict[str, object]] | None:
    rows = tables.rows(_OURS)
    busy = any(row["in_transaction"] or row["holds_locks"] for row in rows)
    return None if busy else rows


def _horizon(tables: Tables) -> int:
    (row,) = tables.rows("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS xmin")
    return int(row["xmin"])


async def _true(answer: object) -> object:
    return answer
