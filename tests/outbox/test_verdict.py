"""What the ledger's word on an effect allows, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.backoff import Backoff
from outbox.job import Effect, Job
from outbox.outcome import JobAction, Outcome, Policy
from outbox.verdict import Call, Place, wait_for_other, with_effect, without_effect

JOB = Job(
    id=7,
    topic="email.order_confirmation",
    priority=0,
    position=7,
    effect_key="email-order-102",
    payload="{}",
    payload_fingerprint=b"f" * 32,
    claim_version=3,
    claimed_by="a:1:b",
    attempts=2,
    max_attempts=None,
    expired=False,
)
PLACE = Place("resend", "api.resend.com", deadline_seconds=30.0)
#: One try is open, begun ten minutes ago by an earlier claim of this job.
OPEN = Effect(
    job_id=7,
    effect_key="email-order-102",
    attempt_job_id=7,
    attempt_claim_version=2,
    topic="email.order_confirmation",
    payload_fingerprint=b"f" * 32,
    provider="resend",
    account="api.resend.com",
    wire_key="email-order-102",
    state="open",
    request=b"{}",
    requests_sent=3,
    detail="read_timeout",
    open_seconds=600.0,
    sole_open=True,
    at_work_elsewhere=False,
)
#: In the ledger, but every try was surely refused or never arrived.
CLOSED = replace(OPEN, open_seconds=None, sole_open=False)

REPLAYS = Policy(3600.0, repeat_unknown=False, max_attempts=5, backoff=Backoff())
REPLAYS_OR_REPEATS = replace(REPLAYS, repeat_unknown=True)
HOLDS = replace(REPLAYS, memory_seconds=None)
REPEATS = replace(HOLDS, repeat_unknown=True)
POLICIES = [REPLAYS, REPLAYS_OR_REPEATS, HOLDS, REPEATS]

FOR_EVER = float("inf")


def decide(
    effect: Effect = OPEN, policy: Policy = REPLAYS, job: dict[str, Any] | None = None
) -> Call | Outcome:
    """One decision; ``job`` is what differs from the usual job."""
    return with_effect(effect, replace(JOB, **(job or {})), policy, PLACE)


# -- not in the ledger ---------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, None),
        ({"attempts": 1}, None),
        ({"attempts": 5}, None),
        ({"attempts": 6}, (JobAction.DEAD, "max_attempts")),
        ({"attempts": 1, "max_attempts": 1}, None),
        ({"attempts": 2, "max_attempts": 1}, (JobAction.DEAD, "max_attempts")),
        ({"attempts": 6, "max_attempts": 9}, None),
        ({"expired": True}, (JobAction.CANCELLED, "expired")),
        ({"expired": True, "attempts": 6}, (JobAction.CANCELLED, "expired")),
    ],
)
def test_a_key_that_is_new(policy: Policy, job: dict[str, Any], expected: Any) -> None:
    """Write the intent and call, unless it is too late or too many workers have died of it."""
    outcome = without_effect(replace(JOB, **job), policy)
    assert (outcome and (outcome.job_action, outcome.reason)) == expected
    if outcome:
        assert outcome.effect_state is None
        assert not outcome.refund


# -- in the ledger, and settled ------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "job", [{}, {"expired": True}, {"attempts": 99}, {"expired": True, "attempts": 99}]
)
@pytest.mark.parametrize(
    ("effect", "action", "reason", "refund"),
    [
        (replace(CLOSED, state="delivered", attempt_job_id=1), "duplicate", "delivered", False),
        (replace(CLOSED, state="delivered"), "done", "delivered", False),
        (replace(CLOSED, state="rejected"), "dead", "rejected", False),
        (replace(CLOSED, state="given_up"), "dead", "given_up", False),
        (replace(OPEN, state="given_up"), "dead", "given_up", False),
        (replace(OPEN, state="held"), "hold", "held", True),
        (replace(OPEN, state="held", attempt_job_id=1), "hold", "held", True),
    ],
)
def test_a_settled_effect_ends_every_further_job_without_a_call(
    policy: Policy, job: dict[str, Any], effect: Effect, action: str, reason: str, refund: bool
) -> None:
    """Delivered, refused, given up, held: whatever the job's own time and attempts say."""
    outcome = decide(effect, policy, job)
    assert isinstance(outcome, Outcome)
    assert (outcome.job_action, outcome.reason, outcome.refund) == (action, reason, refund)
    assert outcome.effect_state is None, "the ledger stays as it is"


def test_a_job_of_a_refused_effect_gets_the_reason() -> None:
    """It is dead for the same cause as the first."""
    effect = replace(CLOSED, state="rejected", detail="http_422: invalid `to`")
    outcome = decide(effect)
    assert isinstance(outcome, Outcome)
    assert outcome.detail == "http_422: invalid `to`"


@pytest.mark.parametrize("state", ["open", "delivered", "rejected", "held", "given_up"])
@pytest.mark.parametrize(
    ("differs", "what"),
    [({"topic": "email.invoice"}, "topic"), ({"payload_fingerprint": b"g" * 32}, "payload")],
)
@pytest.mark.parametrize("at_work_elsewhere", [True, False])
def test_another_topic_or_payload_under_the_same_key_is_dead_at_once(
    state: str, differs: dict[str, Any], what: str, at_work_elsewhere: bool
) -> None:
    """In every state of the effect: one key means one thing."""
    effect = replace(
        OPEN, state=state, attempt_job_id=1, at_work_elsewhere=at_work_elsewhere, **differs
    )
    outcome = decide(effect)
    assert isinstance(outcome, Outcome)
    assert (outcome.job_action, outcome.reason) == (JobAction.DEAD, "effect_key_conflict")
    assert outcome.effect_state is None
    assert outcome.detail == f"this key stands in the ledger with another {what} (job 1)"


# -- in the ledger, and open ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("effect", [OPEN, CLOSED])
@pytest.mark.parametrize("job", [{}, {"expired": True}, {"attempts": 99}])
def test_an_effect_that_another_job_is_calling_is_waited_for(
    policy: Policy, effect: Effect, job: dict[str, Any]
) -> None:
    """Given back unspent; the ledger is left to the one at work."""
    effect = replace(effect, at_work_elsewhere=True, attempt_job_id=1)
    outcome = decide(effect, policy, job)
    assert outcome == wait_for_other()
    assert wait_for_other().job_action is JobAction.RETRY
    assert wait_for_other().refund
    assert wait_for_other().delay_seconds > 0
    assert wait_for_other().effect_state is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    "elsewhere", [{}, {"provider": "other"}, {"account": "other"}, {"attempt_job_id": 1}]
)
def test_with_nothing_open_it_is_called_again(policy: Policy, elsewhere: dict[str, Any]) -> None:
    """The last try surely never arrived or was refused: no memory is needed, nor the account."""
    assert decide(replace(CLOSED, **elsewhere), policy) == Call(
        sole_open=True, seconds_left=FOR_EVER
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("job", "action", "reason"),
    [
        ({"attempts": 6}, "dead", "max_attempts"),
        ({"attempts": 2, "max_attempts": 1}, "dead", "max_attempts"),
        ({"expired": True}, "cancelled", "expired"),
        ({"attempts": 6, "expired": True}, "dead", "max_attempts"),
    ],
)
def test_with_nothing_open_a_job_may_end_as_surely_not_sent(
    policy: Policy, job: dict[str, Any], action: str, reason: str
) -> None:
    """The ledger says so: dead and cancelled are no guess."""
    outcome = decide(CLOSED, policy, job)
    assert isinstance(outcome, Outcome)
    assert (outcome.job_action, outcome.reason) == (action, reason)
    assert outcome.detail == "read_timeout"


@pytest.mark.parametrize(
    ("open_seconds", "policy", "expected"),
    [
        (0.0, REPLAYS, 3600.0),
        (600.0, REPLAYS, 3000.0),
        (3569.9, REPLAYS, pytest.approx(30.1)),
        (3570.0, REPLAYS, 30.0),
        (3570.1, REPLAYS, "memory_lapsed"),
        (3600.0, REPLAYS, "memory_lapsed"),
        (1e9, REPLAYS, "memory_lapsed"),
        (600.0, REPLAYS_OR_REPEATS, 3000.0),
        (3570.1, REPLAYS_OR_REPEATS, FOR_EVER),
        (0.0, HOLDS, "no_memory"),
        (600.0, HOLDS, "no_memory"),
        (0.0, REPEATS, FOR_EVER),
        (1e9, REPEATS, FOR_EVER),
    ],
)
def test_an_open_try_is_repeated_only_while_the_provider_remembers_its_key(
    open_seconds: float, policy: Policy, expected: Any
) -> None:
    """Its age and the next call's deadline must both fit; else it is held, or the user decided."""
    decision = decide(replace(OPEN, open_seconds=open_seconds), policy)
    if isinstance(decision, Call):
        assert (decision.sole_open, decision.seconds_left) == (False, expected)
    else:
        assert (decision.job_action, decision.reason) == (JobAction.HOLD, expected)


@pytest.mark.parametrize("policy", [REPLAYS, HOLDS])
@pytest.mark.parametrize("elsewhere", [{"provider": "other"}, {"account": "other"}])
def test_an_open_try_at_another_account_is_held(policy: Policy, elsewhere: dict[str, Any]) -> None:
    """Its key means nothing here: a repeat would be a second e-mail."""
    outcome = decide(replace(OPEN, **elsewhere), policy)
    assert isinstance(outcome, Outcome)
    assert (outcome.job_action, outcome.reason) == (JobAction.HOLD, "open_at_another_account")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("job", [{"attempts": 6}, {"attempts": 6, "expired": True}])
def test_an_open_try_over_the_cap_is_held_not_dead(policy: Policy, job: dict[str, Any]) -> None:
    """It may have been sent, so it is not surely not sent, nor called off by its expiry."""
    outcome = decide(OPEN, policy, job)
    assert isinstance(outcome, Outcome)
    assert (outcome.job_action, outcome.reason) == (JobAction.HOLD, "max_attempts")


def test_an_expired_job_with_an_open_try_goes_on() -> None:
    """Its first request was in time; now it has to become known whether it arrived."""
    assert decide(OPEN, REPLAYS, {"expired": True}) == Call(sole_open=False, seconds_left=3000.0)


@pytest.mark.parametrize(
    ("effect", "policy", "job"),
    [
        (OPEN, HOLDS, {}),
        (replace(OPEN, open_seconds=1e9), REPLAYS, {}),
        (replace(OPEN, account="other"), REPLAYS, {}),
        (OPEN, REPLAYS, {"attempts": 6}),
    ],
)
def test_what_is_held_says_why_in_the_ledger(
    effect: Effect, policy: Policy, job: dict[str, Any]
) -> None:
    """Fenced by the requests seen, with what is known of the last try."""
    for detail, known in (("read_timeout", "read_timeout"), (None, "cut short by a crash")):
        outcome = decide(replace(effect, detail=detail), policy, job)
        assert isinstance(outcome, Outcome)
        assert outcome.effect_state == "held"
        assert outcome.requests_seen == 3
        assert not outcome.nothing_open
        assert not outcome.refund
        assert outcome.detail == f"{outcome.reason}: last try: {known}"


@given(
    open_seconds=st.none() | st.floats(0, 1e7),
    memory_seconds=st.none() | st.floats(0, 1e6),
    deadline_seconds=st.floats(0.1, 300),
    attempts=st.integers(1, 10),
    expired=st.booleans(),
    elsewhere=st.booleans(),
    other_account=st.booleans(),
)
@settings(max_examples=200, deadline=None)
def test_nothing_is_ever_repeated_blindly(
    open_seconds: float | None,
    memory_seconds: float | None,
    deadline_seconds: float,
    attempts: int,
    expired: bool,
    elsewhere: bool,
    other_account: bool,
) -> None:
    """Unless the user chose to repeat, a call follows only where nothing is open, or where it must
    end while the same account still remembers the key.
    """
    effect = replace(
        OPEN,
        open_seconds=open_seconds,
        at_work_elsewhere=elsewhere,
        account="other" if other_account else PLACE.account,
    )
    decision = with_effect(
        effect,
        replace(JOB, attempts=attempts, expired=expired),
        replace(REPLAYS, memory_seconds=memory_seconds),
        replace(PLACE, deadline_seconds=deadline_seconds),
    )
    if isinstance(decision, Call):
        assert not elsewhere
        assert attempts <= 5
        assert decision.sole_open == (open_seconds is None)
        if open_seconds is not None:
            assert not other_account
            assert memory_seconds is not None
            assert decision.seconds_left == memory_seconds - open_seconds
            assert open_seconds + deadline_seconds <= memory_seconds + 1e-6
    elif open_seconds is not None:
        assert decision.job_action in {JobAction.HOLD, JobAction.RETRY}
