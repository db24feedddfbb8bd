"""The reference: the statements as they ship, run by hand in a bare psycopg loop.

No leases kept, no tasks, no lane: claim, begin and settle, one after the other on one connection.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row

from benchmarks.jobs import TOPIC
from benchmarks.noop import ACCOUNT, PROVIDER
from outbox import statements

_ME = "by-hand:1"


def drain(url: str, *, request_bytes: int, batch: int) -> int:
    """Work off all jobs of the topic in batches; returns how many."""
    body = b"x" * request_bytes if request_bytes else None
    done, floor = 0, 0
    with psycopg.connect(url, autocommit=True, row_factory=namedtuple_row) as connection:
        while jobs := _claim(connection, floor, batch):
            floor = min(job.position for job in jobs)
            _begin(connection, jobs, body)
            _settle(connection, jobs)
            done += len(jobs)
    return done


def _claim(connection: psycopg.Connection[Any], floor: int, batch: int) -> Sequence[Any]:
    return _run(
        connection,
        "claim_jobs",
        topics=[TOPIC],
        priorities=[0],
        floors=[floor],
        limit=batch,
        claimed_by=_ME,
        lease_seconds=60.0,
    )


def _begin(connection: psycopg.Connection[Any], jobs: Sequence[Any], body: bytes | None) -> None:
    rows = _run(
        connection,
        "begin_effects",
        job_ids=[job.id for job in jobs],
        claim_versions=[job.claim_version for job in jobs],
        wire_keys=[job.effect_key for job in jobs],
        requests=[body for _ in jobs],
        request_hashes=[body and hashlib.sha256(body).digest() for _ in jobs],
        claimed_by=_ME,
        provider=PROVIDER,
        account=ACCOUNT,
    )
    assert all(row.begun for row in rows)
    assert len(rows) == len(jobs)


def _settle(connection: psycopg.Connection[Any], jobs: Sequence[Any]) -> None:
    none = [None for _ in jobs]
    rows = _run(
        connection,
        "settle_attempts",
        job_ids=[job.id for job in jobs],
        claim_versions=[job.claim_version for job in jobs],
        effect_keys=[job.effect_key for job in jobs],
        requests_seen=[1 for _ in jobs],
        effect_states=["delivered" for _ in jobs],
        nothing_open=[True for _ in jobs],
        message_ids=[f"id-{job.effect_key}" for job in jobs],
        job_actions=["done" for _ in jobs],
        refunds=[False for _ in jobs],
        delays_seconds=[0.0 for _ in jobs],
        reasons=none,
        details=none,
        claimed_by=_ME,
    )
    assert all(row.claim_held and row.effect_written for row in rows)


def _run(connection: psycopg.Connection[Any], name: str, **parameters: object) -> Sequence[Any]:
    return connection.execute(statements.psycopg(name).encode(), parameters).fetchall()
