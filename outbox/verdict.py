"""Pure decisions before a call: what the ledger's word on an effect allows."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.job import Effect, EffectState, Job
from outbox.outcome import JobAction, Outcome, Policy

#: How long a job waits whose effect another job is calling right now.
ELSEWHERE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Call:
    """Call again: the same key, the same bytes. ``seconds_left`` of the provider's memory."""

    sole_open: bool
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Place:
    """Where this consumer calls, and how long one call may take."""

    provider: str
    account: str
    deadline_seconds: float


def without_effect(job: Job, policy: Policy) -> Outcome | None:
    """Decide about a job whose key is not in the ledger: ``None`` means begin, and call."""
    if job.expired:
        return Outcome(JobAction.CANCELLED, "expired")
    if job.attempts > policy.attempts_allowed(job):
        return Outcome(JobAction.DEAD, "max_attempts", detail="its last claims ended in crashes")
    return None


def with_effect(effect: Effect, job: Job, policy: Policy, place: Place) -> Call | Outcome:
    """Decide about a job whose key is in the ledger (DESIGN's table, row by row)."""
    if (effect.topic, effect.payload_fingerprint) != (job.topic, job.payload_fingerprint):
        return Outcome(JobAction.DEAD, "effect_key_conflict", detail=_conflict(effect, job))
    match EffectState(effect.state):
        case EffectState.DELIVERED:
            own = effect.attempt_job_id == job.id
            return Outcome(JobAction.DONE if own else JobAction.DUPLICATE, "delivered")
        case EffectState.REJECTED | EffectState.GIVEN_UP:
            return Outcome(JobAction.DEAD, effect.state, detail=effect.detail)
        case EffectState.HELD:
            return Outcome(JobAction.HOLD, "held", refund=True)
        case EffectState.OPEN:
            return _open(effect, job, policy, place)


def _open(effect: Effect, job: Job, policy: Policy, place: Place) -> Call | Outcome:
    if effect.at_work_elsewhere:
        return wait_for_other()
    over_the_cap = job.attempts > policy.attempts_allowed(job)
    if effect.open_seconds is None:
        if over_the_cap:
            return Outcome(JobAction.DEAD, "max_attempts", detail=effect.detail)
        if job.expired:
            return Outcome(JobAction.CANCELLED, "expired", detail=effect.detail)
        return Call(sole_open=True, seconds_left=float("inf"))
    if over_the_cap:
        return _hold(effect, "max_attempts")
    if (effect.provider, effect.account) != (place.provider, place.account):
        return _hold(effect, "open_at_another_account")
    return _repeat(effect, effect.open_seconds, policy, place)


def _repeat(effect: Effect, open_seconds: float, policy: Policy, place: Place) -> Call | Outcome:
    if policy.memory_seconds is not None:
        seconds_left = policy.memory_seconds - open_seconds
        if seconds_left >= place.deadline_seconds:
            return Call(sole_open=False, seconds_left=seconds_left)
    if policy.repeat_unknown:
        return Call(sole_open=False, seconds_left=float("inf"))
    return _hold(effect, "no_memory" if policy.memory_seconds is None else "memory_lapsed")


def wait_for_other() -> Outcome:
    """Give a job back, unspent, whose effect another job is at work on."""
    return Outcome(
        JobAction.RETRY, "effect_at_work_elsewhere", refund=True, delay_seconds=ELSEWHERE_SECONDS
    )


def _hold(effect: Effect, reason: str) -> Outcome:
    return Outcome(
        JobAction.HOLD,
        reason,
        effect_state=EffectState.HELD,
        requests_seen=effect.requests_sent,
        detail=f"{reason}: last try: {effect.detail or 'cut short by a crash'}",
    )


def _conflict(effect: Effect, job: Job) -> str:
    what = "topic" if effect.topic != job.topic else "payload"
    return f"this key stands in the ledger with another {what} (job {effect.attempt_job_id})"
