"""The reference: the statements as they ship, run by hand in a bare psycopg loop.

No leases kept, no tasks, no lane: claim, begin and settle, one after the other on one connection.
"""

from __future__ import annotations

import hashlib
import json
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
    outcomes = json.dumps(
        [
            {
                "job_id": job.id,
                "claim_version": job.claim_version,
                "effect_key": job.effect_key,
                "requests_seen": 1,
                "effect_state": "delivered",
                "nothing_open": True,
                "message_id": f"id-{job.effect_key}",
                "job_action": "done",
                "refund": False,
                "delay_seconds": 0.0,
                "reason": None,
                "detail": None,
            }
            for job in jobs
        ]
    )
    rows = _run(connection, "settle_attempts", outcomes=outcomes, claimed_by=_ME)
    assert all(row.claim_held and row.effect_written for row in rows)


def _run(connection: psycopg.Connection[Any], name: str, **parameters: object) -> Sequence[Any]:
    return connection.execute(statements.psycopg(name).encode(), parameters).fetchall()
