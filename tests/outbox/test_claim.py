"""What a consumer finds between two looks from the bottom of the queue, and what only they find."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from benchmarks import jobs
from outbox import claim as claim_module
from outbox.claim import Claims
from outbox.connection import Connection
from outbox.lease import Leases

_EARLIER = "UPDATE outbox.job SET position = -1000 WHERE effect_key = %s"
_WAITS = """
UPDATE outbox.job SET position = NULL, waiting = 'backoff', retry_first = true, available_at = now()
WHERE effect_key = %s
"""


@pytest.fixture
async def claims(database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Claims]:
    """The view of one consumer, after its first look, which was its last one for long."""
    monkeypatch.setattr(claim_module, "_SCAN_SHARE", 1_000_000)
    async with Connection(database_url, "test") as connection:
        claims = Claims(
            connection,
            Leases(connection, "a:1:b", 60.0),
            "a:1:b",
            [jobs.TOPIC],
            lease_seconds=60.0,
            poll_seconds=0.001,
        )
        await claims.keep_up()
        yield claims


async def found(claims: Claims, limit: int = 9) -> list[str]:
    """What the next turn claims."""
    await claims.keep_up()
    return [job.effect_key for job in await claims.take(limit)]


async def test_a_claim_starts_at_its_floor_until_the_next_look(
    connection: psycopg.Connection, claims: Claims
) -> None:
    """A job that comes up below it waits for that."""
    jobs.fill(connection, 3)
    assert await found(claims, 1) == ["k-1"]
    connection.execute(_EARLIER, ["k-3"])
    assert await found(claims) == ["k-2"]
    await claims.scan()
    assert [job.effect_key for job in await claims.take(9)] == ["k-3"]


async def test_a_job_that_goes_first_waits_for_no_look(
    connection: psycopg.Connection, claims: Claims
) -> None:
    """What has an open effect lies below all floors; the turn that let it in claims it."""
    jobs.fill(connection, 3)
    assert await found(claims, 1) == ["k-1"]
    connection.execute(_WAITS, ["k-3"])
    assert await found(claims, 1) == ["k-3"]
    assert await found(claims) == ["k-2"]


async def test_after_an_outage_the_next_turn_looks(
    connection: psycopg.Connection, claims: Claims
) -> None:
    """Leases may have run out meanwhile."""
    jobs.fill(connection, 2)
    assert await found(claims, 1) == ["k-1"]
    connection.execute("UPDATE outbox.job SET lease_until = now() WHERE claimed_by IS NOT NULL")
    await claims.keep_up()
    assert not claims.crashed_waiting
    claims.scan_soon()
    assert claims.scan_due
    await claims.keep_up()
    assert claims.crashed_waiting
