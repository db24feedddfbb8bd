"""What people ask about single jobs and effects: page by page, and one by one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from outbox.errors import DatabaseUnavailable
from outbox.operator import Operator

#: States as the view outbox.job_status has them.
JOB_STATES = (
    "ready", "scheduled", "backing_off", "running", "blocked", "held", "dead", "cancelled", "done",
)  # fmt: skip
#: The jobs of one key have no index; whoever asks gets the ones that are found in this time.
_JOBS_OF_EFFECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as the view ``outbox.job_status`` shows it; never its payload."""

    id: int
    state: str
    topic: str
    effect_key: str
    priority: int | None
    ordering_key: str | None
    attempts: int | None
    enqueued_at: datetime | None
    available_at: datetime | None
    expires_at: datetime | None
    claimed_by: str | None
    lease_until: datetime | None
    ended_at: datetime | None
    reason: str | None
    detail: str | None


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """A ledger row; never its request.

    ``requests_sent`` counts requests begun: an upper bound of those that arrived.
    ``may_have_been_sent``: a request is open, that is, it may have been accepted unknown to us.
    """

    effect_key: str
    state: str
    topic: str
    provider: str
    account: str
    provider_message_id: str | None
    requests_sent: int
    first_attempt_at: datetime
    last_attempt_at: datetime
    settled_at: datetime | None
    open_since: datetime | None
    may_have_been_sent: bool
    job_id: int
    attempted_by: str
    detail: str | None
    wire_key: str
    request_sha256: str | None


@dataclass(frozen=True, slots=True)
class JobOfEffect:
    """A job that asks for an effect."""

    id: int
    state: str
    attempts: int | None
    enqueued_at: datetime | None
    available_at: datetime | None
    ended_at: datetime | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class EffectHistory:
    """What is known of one key. ``effect`` is ``None`` while no request was ever begun for it.

    ``jobs`` is ``None`` where the search for them took too long.
    """

    effect: EffectRecord | None
    jobs: list[JobOfEffect] | None


@dataclass(frozen=True, slots=True)
class _Key:
    effect_key: str


@dataclass(frozen=True, slots=True)
class _Delivered:
    job_id: int
    effect_key: str


@dataclass(frozen=True, slots=True)
class _Payload:
    payload: str | None


def list_jobs(
    operator: Operator, *, states: Collection[str], topic: str | None, after: int, limit: int
) -> list[JobRecord]:
    """Return the jobs in these states with an id above ``after``, in order of ids."""
    with operator.turn():
        return operator.fetch(
            JobRecord, "list_jobs", states=list(states), topic=topic, after=after, limit=limit
        )


def read_jobs(operator: Operator, job_ids: Sequence[int]) -> list[JobRecord]:
    """Return those of the jobs that are live or have ended other than by delivering themselves."""
    with operator.turn():
        return operator.fetch(JobRecord, "read_jobs", job_ids=list(job_ids))


def find_delivered(operator: Operator, job_ids: Sequence[int]) -> dict[int, str]:
    """Return the effect keys of the jobs that delivered themselves; reads the whole ledger."""
    with operator.turn():
        rows = operator.fetch(_Delivered, "find_delivered_jobs", job_ids=list(job_ids))
    return {row.job_id: row.effect_key for row in rows}


def whereabouts(operator: Operator, job_ids: Sequence[int]) -> dict[int, str]:
    """Return the state of each job; ``unknown`` for one that is nowhere.

    ``done_or_unknown`` where the search through the ledger took too long. A statement that was to
    change these jobs has run before: so this raises nothing for want of time.
    """
    if not job_ids:
        return {}
    states = {job.id: job.state for job in read_jobs(operator, job_ids)}
    if missing := [job_id for job_id in job_ids if job_id not in states]:
        try:
            delivered = find_delivered(operator, missing)
        except DatabaseUnavailable:
            return states | dict.fromkeys(missing, "done_or_unknown")
        states |= {job_id: "done" if job_id in delivered else "unknown" for job_id in missing}
    return states


def read_payload(operator: Operator, job_id: int) -> str | None:
    """Return the JSON text of a job's payload; ``None`` when it is gone."""
    with operator.turn():
        rows = operator.fetch(_Payload, "read_payload", job_id=job_id)
    return rows[0].payload if rows else None


def read_effects(operator: Operator, effect_keys: Sequence[str]) -> list[EffectRecord]:
    """Return the ledger rows of these keys, in order of keys."""
    with operator.turn():
        return operator.fetch(EffectRecord, "show_effects", effect_keys=list(effect_keys))


def list_effects(
    operator: Operator,
    *,
    state: str | None,
    topic: str | None,
    after: str,
    limit: int,
    before: datetime | None = None,
) -> list[EffectRecord]:
    """Return ledger rows with a key above ``after``, in order of keys.

    ``before``: only those whose last request began before that moment. States other than delivered
    are found through the jobs, so that a page does not read ten million delivered rows.
    """
    statement = "list_effects" if state in {None, "delivered"} else "list_undelivered_effects"
    with operator.turn():
        keys = operator.fetch(
            _Key, statement, state=state, topic=topic, after=after, limit=limit, before=before
        )
        found = operator.fetch(
            EffectRecord, "show_effects", effect_keys=[row.effect_key for row in keys]
        )
    # Settled between the two statements: it is no longer what was asked for.
    return [effect for effect in found if state in {None, effect.state}]


def effect_history(operator: Operator, effect_key: str) -> EffectHistory:
    """Return what the ledger and the jobs say of one key."""
    effects = read_effects(operator, [effect_key])
    try:
        with operator.turn(_JOBS_OF_EFFECT_SECONDS):
            jobs = operator.fetch(JobOfEffect, "find_jobs_of_effect", effect_key=effect_key)
    except DatabaseUnavailable:
        return EffectHistory(effects[0] if effects else None, None)
    return EffectHistory(effects[0] if effects else None, jobs)
