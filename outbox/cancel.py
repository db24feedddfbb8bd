"""Cancelling: a job is called off only if no request can be under way or have arrived for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.inspection import whereabouts
from outbox.operator import Operator

#: What it means for us that a job is no longer live.
_REFUSALS = {"cancelled": None, "done": "delivered"}


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What became of one job.

    ``refusal`` is ``None`` for a cancelled one (now or before), else why it is too late:
    ``running`` (a consumer is at work on it), ``may_have_been_sent``, ``held``, ``delivered``; or
    ``dead``, ``unknown`` or ``done_or_unknown``.
    """

    job_id: int
    refusal: str | None


@dataclass(frozen=True, slots=True)
class _Judged:
    job_id: int
    too_late: str | None
    topic: str | None


@dataclass(frozen=True, slots=True)
class _Id:
    id: int


def cancel(operator: Operator, job_ids: Sequence[int]) -> list[Cancelled]:
    """Cancel each job for which it is not too late, and say of the others why.

    The jobs' rows are locked first: a claim that came before is seen, one that comes after finds
    the job gone.
    """
    with operator.turn():
        live = operator.fetch(_Id, "lock_jobs", job_ids=list(job_ids))
        judged = operator.fetch(_Judged, "cancel_jobs", job_ids=[row.id for row in live])
        # The next of an ordering key may be free to go now.
        operator.wake({row.topic for row in judged if row.topic is not None})
    found: dict[int, str | None] = {row.job_id: row.too_late for row in judged}
    elsewhere = whereabouts(operator, [job_id for job_id in job_ids if job_id not in found])
    found |= {job_id: _REFUSALS.get(state, state) for job_id, state in elsewhere.items()}
    return [Cancelled(job_id, found[job_id]) for job_id in job_ids]
