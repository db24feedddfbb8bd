"""What the shipped decision tables say, in the model's words; each question is asked once."""

from __future__ import annotations

from functools import cache

from outbox import job as shipped
from outbox import verdict
from outbox.outcome import UNREADABLE, Answer, Meaning, Outcome, after_answer
from outbox.outcome import not_started as shipped_not_started
from tests.model.state import (
    DEADLINE_SECONDS,
    LAPSED,
    MEMORY_SECONDS,
    TICK_SECONDS,
    Consumer,
    Decision,
    Effect,
    World,
)

PLACE = verdict.Place("provider", "account", DEADLINE_SECONDS)
FINGERPRINT = b"f" * 32
INFINITY = float("inf")


@cache
def before_call(w: World, me: Consumer, effect: Effect | None, elsewhere: bool) -> Consumer:
    """Return the consumer after it has read the ledger: it begins a try, or settles."""
    if effect is None:
        return _settles(me, verdict.without_effect(_job(me), w.policy) or verdict.wait_for_other())
    if (effect.job, effect.version) == (me.job, me.version):
        return _resumes(w, me, effect)
    said = verdict.with_effect(_row(me, effect, elsewhere), _job(me), w.policy, PLACE)
    if isinstance(said, Outcome):
        return _settles(me, said)
    return me._replace(
        phase="reopen",
        sent=effect.sent,
        sole=said.sole_open,
        age=None if said.seconds_left == INFINITY else _age(me, effect),
        unreadable=effect.unreadable,
    )


@cache
def after_call(w: World, me: Consumer, meaning: str) -> Consumer:
    """Return the consumer after an answer; FAILED is its own failure, UNAVAILABLE an outage's."""
    outcome = after_answer(
        Answer(Meaning[meaning], meaning.lower()),
        _job(me),
        _attempt(me),
        w.policy,
        lane_answers=True,
        lane_at_fault=False,
    )
    return _settles(me, outcome)


@cache
def wait_for_other(me: Consumer) -> Consumer:
    """Return the consumer that has found another one at work on its effect."""
    return _settles(me, verdict.wait_for_other())


@cache
def not_started(me: Consumer) -> Consumer:
    """Return the consumer whose last check before the call has failed."""
    return _settles(me, shipped_not_started(_attempt(me), "lease_too_short"))


def decision(outcome: Outcome) -> Decision:
    """Return an outcome without its texts."""
    return Decision(
        action=str(outcome.job_action),
        reason=outcome.reason,
        state=None if outcome.effect_state is None else str(outcome.effect_state),
        seen=outcome.requests_seen,
        nothing_open=outcome.nothing_open,
        refund=outcome.refund,
        unreadable=outcome.detail == UNREADABLE,
    )


def _settles(me: Consumer, outcome: Outcome) -> Consumer:
    return Consumer(me.job, me.version, me.attempts, "settle", decision=decision(outcome))


def _resumes(w: World, me: Consumer, effect: Effect) -> Consumer:
    """``ledger._resumed``: the answer to its own begin was lost, nothing has left."""
    if effect.state != "open" or effect.age is None:
        return wait_for_other(me)
    return me._replace(
        phase="begun",
        sent=effect.sent,
        sole=effect.sole,
        age=None if effect.sole or not w.replays else _age(me, effect),
        body=effect.body,
        unreadable=effect.unreadable,
    )


def _age(me: Consumer, effect: Effect) -> int:
    return min((effect.age or 0) + (me.age or 0), LAPSED)


def _job(me: Consumer) -> shipped.Job:
    return shipped.Job(
        id=me.job,
        topic="topic",
        priority=0,
        position=me.job,
        effect_key="key",
        payload="{}",
        payload_fingerprint=FINGERPRINT,
        claim_version=me.version,
        claimed_by="consumer",
        attempts=me.attempts,
        max_attempts=None,
        expired=me.expired,
    )


def _row(me: Consumer, effect: Effect, elsewhere: bool) -> shipped.Effect:
    return shipped.Effect(
        job_id=me.job,
        effect_key="key",
        attempt_job_id=effect.job,
        attempt_claim_version=effect.version,
        topic="topic",
        payload_fingerprint=FINGERPRINT,
        provider=PLACE.provider,
        account=PLACE.account,
        wire_key="key",
        state=effect.state,
        request=b"",
        requests_sent=effect.sent,
        detail=UNREADABLE if effect.unreadable else None,
        open_seconds=None if effect.age is None else effect.age * TICK_SECONDS,
        sole_open=effect.sole,
        at_work_elsewhere=elsewhere,
    )


def _attempt(me: Consumer) -> shipped.Attempt:
    return shipped.Attempt(
        wire_key="key",
        body=b"",
        requests_sent=me.sent,
        sole_open=me.sole,
        call_before=INFINITY if me.age is None else MEMORY_SECONDS - me.age * TICK_SECONDS,
        last_detail=UNREADABLE if me.unreadable else None,
    )
