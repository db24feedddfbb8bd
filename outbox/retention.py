"""Retention: payloads of jobs that ended long ago go, rows and keys stay as tombstones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from outbox.operator import Operator

#: So many rows are cleared in one transaction, so that nobody waits behind it.
_BATCH = 1000
_ENDED_AS = ("duplicate", "dead", "cancelled")


@dataclass(frozen=True, slots=True)
class _Cleared:
    id: int
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class _Count:
    jobs: int


def prunable(operator: Operator, days: float) -> int:
    """Count the ended jobs older than ``days`` that still have a payload."""
    with operator.turn():
        return operator.fetch(_Count, "count_prunable_jobs", days=days)[0].jobs


def prune(operator: Operator, days: float) -> Iterator[int]:
    """Clear the payloads of jobs that ended more than ``days`` ago, and yield each batch's size.

    A job without its payload can't be retried any more. The ledger keeps every key; only a frozen
    request that such a job left behind, with nothing open, goes with it.
    """
    for ended_as in _ENDED_AS:
        last: _Cleared | None = None
        while cleared := _batch(operator, days, ended_as, last):
            last = cleared[-1]
            yield len(cleared)


def _batch(operator: Operator, days: float, ended_as: str, last: _Cleared | None) -> list[_Cleared]:
    with operator.turn():
        return operator.fetch(
            _Cleared,
            "prune_ended_jobs",
            days=days,
            ended_as=ended_as,
            after_ended_at=last.ended_at if last else "-infinity",
            after_id=last.id if last else 0,
            limit=_BATCH,
        )
