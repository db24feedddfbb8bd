"""Pure decisions after a call: what the provider's answer means for the effect and for the job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from outbox.backoff import Backoff
from outbox.job import Attempt, EffectState, Job


class Meaning(Enum):
    """What an answer says about one request."""

    ACCEPTED = "accepted"
    #: A 2xx of another shape than the provider's success, or one that broke off.
    ACCEPTED_UNREADABLE = "accepted_unreadable"
    #: This request is refused for good (400, 413, 422): surely not accepted.
    REFUSED = "refused"
    #: A bare 403 or 404, which may speak of this request or of the whole account.
    REFUSED_BARE = "refused_bare"
    #: The account or the endpoint is at fault, no job is: surely not accepted.
    MISCONFIGURED = "misconfigured"
    #: The provider is at work on this key right now.
    IN_PROGRESS = "in_progress"
    #: Somebody used this key with another body.
    KEY_TAKEN = "key_taken"
    #: Too many requests; the provider says that this means not accepted.
    THROTTLED = "throttled"
    #: A sign of an outage (408, 503): may have been accepted.
    UNAVAILABLE = "unavailable"
    #: Broken off or failed (other 5xx, timeout, reset): may have been accepted.
    FAILED = "failed"
    #: An error before the first byte was written: surely never reached.
    UNREACHED = "unreached"


#: Answers that show a working provider and account.
REAL = (Meaning.ACCEPTED, Meaning.REFUSED, Meaning.IN_PROGRESS, Meaning.KEY_TAKEN)
#: Answers after which this request may have been accepted.
MAY_BE_ACCEPTED = frozenset(
    {
        Meaning.ACCEPTED_UNREADABLE,
        Meaning.IN_PROGRESS,
        Meaning.KEY_TAKEN,
        Meaning.UNAVAILABLE,
        Meaning.FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back from one call.

    ``reason`` is a short code for people and metrics (``http_503 service_unavailable``); ``detail``
    is the provider's own sentence, free of secrets and addresses, at most 500 characters.
    """

    meaning: Meaning
    reason: str
    message_id: str | None = None
    detail: str | None = None
    retry_after_seconds: float | None = None


class JobAction(StrEnum):
    """What happens to the job's row when its attempt is settled."""

    DONE = "done"
    DUPLICATE = "duplicate"
    DEAD = "dead"
    CANCELLED = "cancelled"
    RETRY = "retry"
    HOLD = "hold"
    GIVE_BACK = "give_back"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The decided end of one attempt, as the settle statement writes it.

    ``effect_state`` is ``None`` where the ledger row stays untouched. ``refund`` gives the attempt
    back that the claim has charged.
    """

    job_action: JobAction
    reason: str | None = None
    effect_state: EffectState | None = None
    requests_seen: int = 0
    nothing_open: bool = False
    refund: bool = False
    delay_seconds: float = 0.0
    message_id: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """What may be done about an effect of one topic.

    ``memory_seconds``: how long the provider surely remembers a key, margin taken off; ``None``
    when it keeps no keys. ``repeat_unknown``: a possible earlier send may be repeated even so.
    """

    memory_seconds: float | None
    repeat_unknown: bool
    max_attempts: int
    backoff: Backoff

    def attempts_allowed(self, job: Job) -> int:
        """Return the job's own cap, or the default one."""
        return job.max_attempts or self.max_attempts


#: Retry-After is obeyed up to this; a provider that asks for more is asked again by then.
RETRY_AFTER_SECONDS_MAX = 600.0
RETRY_AFTER_SECONDS_MIN = 1.0


def after_answer(
    answer: Answer,
    job: Job,
    attempt: Attempt,
    policy: Policy,
    *,
    lane_answers: bool,
    lane_at_fault: bool,
) -> Outcome:
    """Decide what an answer means for the effect and its job.

    ``lane_answers``: other effects get real answers meanwhile, so a failure is this job's own and
    costs its attempt. ``lane_at_fault``: the same refusal, or the same unreadable success,
    has met several different effects, so it says nothing about this one.
    """
    decision = _Decision(answer, job, attempt, policy)
    match answer.meaning:
        case Meaning.ACCEPTED:
            return decision.delivered()
        case Meaning.ACCEPTED_UNREADABLE:
            return decision.open(spend=False) if lane_at_fault else decision.unreadable()
        case Meaning.REFUSED | Meaning.REFUSED_BARE if not lane_at_fault:
            return decision.rejected()
        case Meaning.REFUSED | Meaning.REFUSED_BARE | Meaning.MISCONFIGURED | Meaning.THROTTLED:
            return decision.later(spend=False)
        case Meaning.UNREACHED:
            return decision.later(spend=False)
        case Meaning.KEY_TAKEN:
            return decision.held("key_taken")
        case Meaning.IN_PROGRESS | Meaning.UNAVAILABLE:
            return decision.open(spend=False)
        case Meaning.FAILED:
            return decision.open(spend=lane_answers)


@dataclass(frozen=True, slots=True)
class _Decision:
    answer: Answer
    job: Job
    attempt: Attempt
    policy: Policy

    @property
    def replays(self) -> bool:
        return self.policy.memory_seconds is not None

    def delivered(self, flag: str | None = None) -> Outcome:
        return Outcome(
            JobAction.DONE,
            effect_state=EffectState.DELIVERED,
            requests_seen=self.attempt.requests_sent,
            nothing_open=True,
            message_id=self.answer.message_id,
            detail=flag,
        )

    def unreadable(self) -> Outcome:
        """Ask once more where the repeat brings the id; else it is accepted, without an id."""
        if self.replays and self.attempt.last_detail != UNREADABLE:
            return self._retry(spend=False, nothing_open=False, detail=UNREADABLE)
        return self.delivered(flag="accepted_without_id")

    def rejected(self) -> Outcome:
        """Refused for good, unless an earlier try is open at a provider that can't tell."""
        # A repeat that no memory bounds is one that the provider could not recognise.
        if not self.attempt.sole_open and self.attempt.call_before == float("inf"):
            return self.held("earlier_try_unknown")
        return Outcome(
            JobAction.DEAD,
            "rejected",
            effect_state=EffectState.REJECTED,
            requests_seen=self.attempt.requests_sent,
            nothing_open=True,
            detail=self._detail,
        )

    def later(self, *, spend: bool) -> Outcome:
        """This try surely was not accepted; an earlier one may still be open."""
        return self._retry(spend=spend, nothing_open=self.attempt.sole_open)

    def open(self, *, spend: bool) -> Outcome:
        if not self.replays and not self.policy.repeat_unknown:
            return self.held("no_memory")
        if spend and self.job.attempts >= self.policy.attempts_allowed(self.job):
            return self.held("max_attempts")
        return self._retry(spend=spend, nothing_open=False)

    def held(self, reason: str) -> Outcome:
        return Outcome(
            JobAction.HOLD,
            reason,
            effect_state=EffectState.HELD,
            requests_seen=self.attempt.requests_sent,
            detail=f"{reason}: {self._detail}",
        )

    def _retry(self, *, spend: bool, nothing_open: bool, detail: str | None = None) -> Outcome:
        delay = self.policy.backoff.delay_seconds(self.attempt.requests_sent)
        if self.answer.retry_after_seconds is not None:
            # A provider that says 0 is not asked at once, and at once again.
            delay = max(
                delay if spend else min(delay, RETRY_AFTER_SECONDS_MIN),
                min(self.answer.retry_after_seconds, RETRY_AFTER_SECONDS_MAX),
            )
        return Outcome(
            JobAction.RETRY,
            self.answer.reason,
            effect_state=EffectState.OPEN,
            requests_seen=self.attempt.requests_sent,
            nothing_open=nothing_open,
            refund=not spend,
            delay_seconds=delay,
            detail=detail or self._detail,
        )

    @property
    def _detail(self) -> str:
        return (
            f"{self.answer.reason}: {self.answer.detail}"
            if self.answer.detail
            else self.answer.reason
        )


#: The ledger's detail after a 2xx of another shape: the next one of the same effect is believed.
UNREADABLE = "unreadable_success"


def not_started(attempt: Attempt, reason: str) -> Outcome:
    """A try that the ledger has begun but whose call was never started: nothing has left."""
    return Outcome(
        JobAction.GIVE_BACK,
        reason,
        effect_state=EffectState.OPEN,
        requests_seen=attempt.requests_sent,
        nothing_open=attempt.sole_open,
        refund=True,
    )
