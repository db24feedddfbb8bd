"""A person's retry: ended jobs come back under their old id and key, if their effect allows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from outbox.inspection import whereabouts
from outbox.operator import Operator

#: So many jobs come back in one transaction.
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Permission:
    """What a person allows beyond the usual.

    ``send_again``: bring back a job whose effect was given up although it may have been sent; this
    may make a second one. ``ignore_expiry``: bring back jobs past their ``expires_at``.
    """

    send_again: bool = False
    ignore_expiry: bool = False


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of one job.

    ``refusal`` is ``None`` for a job that is back, else why not: ``duplicate``, ``payload_pruned``,
    ``expired``, ``delivered``, ``held``, ``may_have_been_sent``; or, for a job that has not ended
    (any more), its state, ``unknown`` or ``done_or_unknown``.
    ``conflicts``: its key stands in the ledger for another effect, so it will end the same way.
    """

    job_id: int
    refusal: str | None
    conflicts: bool = False


@dataclass(frozen=True, slots=True)
class _Judged:
    job_id: int
    refusal: str | None
    conflicts: bool
    topic: str | None


@dataclass(frozen=True, slots=True)
class _Id:
    id: int


def ended_jobs(
    operator: Operator,
    *,
    ended_as: str,
    topic: str | None,
    reason: str | None,
    before: datetime | None,
    limit: int,
) -> list[int]:
    """Return the ids of jobs that ended so, oldest end first; ``before`` is about their end."""
    with operator.turn():
        rows = operator.fetch(
            _Id, "list_ended_jobs",
            ended_as=ended_as, topic=topic, reason=reason, before=before, limit=limit,
        )  # fmt: skip
    return [row.id for row in rows]


def retry(
    operator: Operator, job_ids: Sequence[int], permission: Permission, *, dry_run: bool = False
) -> list[Retried]:
    """Bring back each job that may come back, and say of the others why not.

    Attempts start from zero, ``claim_version`` goes on. An effect that was refused for good is
    reopened, to be rendered and frozen anew under its old key. Asked twice at once, a job comes
    back once.
    """
    results: list[Retried] = []
    for start in range(0, len(job_ids), _BATCH):
        results += _batch(operator, job_ids[start : start + _BATCH], permission, dry_run=dry_run)
    found = {result.job_id for result in results}
    elsewhere = whereabouts(operator, [job_id for job_id in job_ids if job_id not in found])
    return sorted(
        [*results, *(Retried(*where) for where in elsewhere.items())],
        key=lambda result: result.job_id,
    )


def _batch(
    operator: Operator, job_ids: Sequence[int], permission: Permission, *, dry_run: bool
) -> list[Retried]:
    with operator.turn():
        ended = operator.fetch(_Id, "lock_ended_jobs", job_ids=list(job_ids))
        judged = operator.fetch(
            _Judged,
            "retry_jobs",
            job_ids=[row.id for row in ended],
            send_again=permission.send_again,
            ignore_expiry=permission.ignore_expiry,
            dry_run=dry_run,
        )
        operator.wake({row.topic for row in judged if row.topic is not None})
    return [Retried(row.job_id, row.refusal, row.conflicts) for row in judged]
