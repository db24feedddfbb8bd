"""Counts what became of every job: a figure stands only where each ran exactly once."""

from __future__ import annotations

import psycopg


class Wrong(Exception):
    """A job was lost or ran twice: the measurement is worthless."""


_COUNT = """
SELECT count(*) FILTER (WHERE state = 'delivered' AND requests_sent = 1),
    count(*),
    (SELECT count(*) FROM outbox.job WHERE effect_key LIKE %(keys)s),
    (SELECT count(*) FROM outbox.ended_job WHERE effect_key LIKE %(keys)s)
FROM outbox.effect
WHERE effect_key LIKE %(keys)s
"""


def exactly_once(url: str, jobs: int, calls: int, keys: str = "%") -> str:
    """Make sure that ``jobs`` jobs led to as many effects, each delivered by one request.

    ``calls`` is what the other side has counted.

    Raises:
        Wrong: otherwise.
    """
    with psycopg.connect(url) as connection:
        row = connection.execute(_COUNT, {"keys": keys}).fetchone()
    assert row is not None
    if calls != jobs or row != (jobs, jobs, 0, 0):
        raise Wrong(
            f"{jobs} jobs, {calls} calls; delivered by one request, effects, left, ended: {row}"
        )
    return f"{jobs} jobs: {calls} calls, {row[0]} effects delivered by one request each, none left"
