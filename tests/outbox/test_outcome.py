"""What an answer means, row by row: for the effect, for the job, for its attempts."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import pytest

from outbox.backoff import Backoff
from outbox.job import Attempt, EffectState, Job
from outbox.outcome import (
    MAY_BE_ACCEPTED,
    REAL,
    RETRY_AFTER_SECONDS_MAX,
    UNREADABLE,
    Answer,
    JobAction,
    Meaning,
    Outcome,
    Policy,
    after_answer,
    not_started,
)

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
ATTEMPT = Attempt("email-order-102", b"{}", 4, sole_open=True, call_before=float("inf"))

#: The three kinds of provider: one that replays keys, and one without, by what the user chose.
POLICIES = {
    "replays": Policy(3600.0, repeat_unknown=False, max_attempts=5, backoff=Backoff()),
    "hold": Policy(None, repeat_unknown=False, max_attempts=5, backoff=Backoff()),
    "repeat": Policy(None, repeat_unknown=True, max_attempts=5, backoff=Backoff()),
}


class Row(NamedTuple):
    """What is decided: ``reason`` of the job, and whether the try stays open."""

    action: str
    state: str
    nothing_open: bool
    refund: bool
    reason: str | None


def decide(
    meaning: Meaning,
    provider: str = "replays",
    *,
    sole_open: bool = True,
    call_before: float = float("inf"),
    lane_answers: bool = False,
    lane_at_fault: bool = False,
    attempts: int = 2,
    **answer: Any,
) -> Outcome:
    """One decision, with what a test has no interest in filled in."""
    return after_answer(
        Answer(meaning, "http_000", **answer),
        replace(JOB, attempts=attempts),
        replace(ATTEMPT, sole_open=sole_open, call_before=call_before),
        POLICIES[provider],
        lane_answers=lane_answers,
        lane_at_fault=lane_at_fault,
    )


def row(outcome: Outcome) -> Row:
    """The decision without its details."""
    return Row(
        str(outcome.job_action),
        str(outcome.effect_state),
        outcome.nothing_open,
        outcome.refund,
        outcome.reason,
    )


DELIVERED = Row("done", "delivered", nothing_open=True, refund=False, reason=None)
REJECTED = Row("dead", "rejected", nothing_open=True, refund=False, reason="rejected")
LATER = Row("retry", "open", nothing_open=True, refund=True, reason="http_000")
LATER_OPEN = LATER._replace(nothing_open=False)
SPENT = LATER_OPEN._replace(refund=False)


def held(reason: str) -> Row:
    """Waits for proof or for a person."""
    return Row("hold", "held", nothing_open=False, refund=False, reason=reason)


SURELY_NOT = (Meaning.MISCONFIGURED, Meaning.THROTTLED, Meaning.UNREACHED)
REFUSALS = (Meaning.REFUSED, Meaning.REFUSED_BARE)
#: Meaning, provider, what else is the case, and the decision.
TABLE: list[tuple[Meaning, str, dict[str, Any], Row]] = [
    (Meaning.ACCEPTED, "replays", {}, DELIVERED),
    (Meaning.ACCEPTED, "hold", {}, DELIVERED),
    (Meaning.ACCEPTED, "repeat", {}, DELIVERED),
    (Meaning.ACCEPTED, "replays", {"sole_open": False}, DELIVERED),
    (Meaning.ACCEPTED, "hold", {"sole_open": False, "lane_at_fault": True}, DELIVERED),
    (Meaning.ACCEPTED, "replays", {"attempts": 5}, DELIVERED),
    (Meaning.ACCEPTED_UNREADABLE, "replays", {}, LATER_OPEN),
    (Meaning.ACCEPTED_UNREADABLE, "replays", {"attempts": 5}, LATER_OPEN),
    (Meaning.ACCEPTED_UNREADABLE, "hold", {}, DELIVERED),
    (Meaning.ACCEPTED_UNREADABLE, "repeat", {}, DELIVERED),
    *((meaning, p, {}, REJECTED) for meaning, p in product(REFUSALS, POLICIES)),
    *(
        (meaning, "replays", {"sole_open": False, "call_before": 1000.0}, REJECTED)
        for meaning in REFUSALS
    ),
    *(
        (meaning, p, {"sole_open": False}, held("earlier_try_unknown"))
        for meaning, p in product(REFUSALS, ("hold", "repeat"))
    ),
    *(
        (meaning, p, {"lane_at_fault": True, "attempts": attempts}, LATER)
        for meaning, p, attempts in product(REFUSALS, POLICIES, (2, 5))
    ),
    *(
        (meaning, p, {"lane_at_fault": True, "sole_open": False}, LATER_OPEN)
        for meaning, p in product(REFUSALS, POLICIES)
    ),
    *(
        (meaning, p, {"attempts": attempts, "lane_answers": answers}, LATER)
        for meaning, p, attempts, answers in product(SURELY_NOT, POLICIES, (1, 5), (True, False))
    ),
    *(
        (meaning, p, {"sole_open": False}, LATER_OPEN)
        for meaning, p in product(SURELY_NOT, POLICIES)
    ),
    *((Meaning.KEY_TAKEN, p, {}, held("key_taken")) for p in POLICIES),
    *((Meaning.KEY_TAKEN, p, {"sole_open": False}, held("key_taken")) for p in POLICIES),
    (Meaning.IN_PROGRESS, "replays", {"attempts": 5, "lane_answers": True}, LATER_OPEN),
    (Meaning.IN_PROGRESS, "repeat", {"attempts": 5, "lane_answers": True}, LATER_OPEN),
    (Meaning.IN_PROGRESS, "hold", {}, held("no_memory")),
    (Meaning.UNAVAILABLE, "replays", {"attempts": 5, "lane_answers": True}, LATER_OPEN),
    (Meaning.UNAVAILABLE, "repeat", {"attempts": 5, "lane_answers": True}, LATER_OPEN),
    (Meaning.UNAVAILABLE, "hold", {}, held("no_memory")),
    (Meaning.FAILED, "replays", {}, LATER_OPEN),
    (Meaning.FAILED, "replays", {"attempts": 5}, LATER_OPEN),
    (Meaning.FAILED, "replays", {"attempts": 500}, LATER_OPEN),
    (Meaning.FAILED, "replays", {"lane_answers": True, "attempts": 4}, SPENT),
    (Meaning.FAILED, "replays", {"lane_answers": True, "attempts": 5}, held("max_attempts")),
    (Meaning.FAILED, "replays", {"lane_answers": True, "attempts": 6}, held("max_attempts")),
    (Meaning.FAILED, "repeat", {}, LATER_OPEN),
    (Meaning.FAILED, "repeat", {"lane_answers": True, "attempts": 4}, SPENT),
    (Meaning.FAILED, "repeat", {"lane_answers": True, "attempts": 5}, held("max_attempts")),
    (Meaning.FAILED, "hold", {}, held("no_memory")),
    (Meaning.FAILED, "hold", {"lane_answers": True, "attempts": 5}, held("no_memory")),
]


@pytest.mark.parametrize(
    ("meaning", "provider", "given", "expected"),
    TABLE,
    ids=[f"{meaning.value} {provider} {given}" for meaning, provider, given, _ in TABLE],
)
def test_the_table_of_answers(
    meaning: Meaning, provider: str, given: dict[str, Any], expected: Row
) -> None:
    """Each row of the design's table of answers, for each kind of provider."""
    assert row(decide(meaning, provider, **given)) == expected


def test_the_table_has_every_meaning_for_every_provider() -> None:
    """A new kind of answer needs a decision for each."""
    assert {(meaning, provider) for meaning, provider, _, _ in TABLE} == set(
        product(Meaning, POLICIES)
    )


EVERYTHING = list(
    product(
        Meaning,
        POLICIES,
        (True, False),  # sole_open
        (True, False),  # lane_answers
        (True, False),  # lane_at_fault
        (1, 4, 5, 6),  # attempts, of 5
    )
)


def every_outcome() -> list[tuple[Meaning, str, bool, bool, bool, int, Outcome]]:
    """All combinations, with what was decided."""
    return [
        (meaning, provider, sole, answers, fault, attempts, decide(
            meaning, provider, sole_open=sole, lane_answers=answers, lane_at_fault=fault,
            attempts=attempts,
        ))
        for meaning, provider, sole, answers, fault, attempts in EVERYTHING
    ]  # fmt: skip


def test_every_outcome_names_the_try_that_it_judges() -> None:
    """The settle statement is fenced by the number of requests that were seen."""
    for *_, outcome in every_outcome():
        assert outcome.requests_seen == ATTEMPT.requests_sent
        assert outcome.effect_state is not None


def test_dead_means_surely_not_sent() -> None:
    """Only a refusal kills, and never while an earlier try may have been accepted unseen."""
    for meaning, provider, sole, *_, outcome in every_outcome():
        if outcome.job_action is JobAction.DEAD:
            assert meaning in REFUSALS
            assert sole or provider == "replays"
            assert outcome.nothing_open


def test_held_means_that_a_request_may_have_arrived() -> None:
    """A try that surely was not accepted holds nothing by itself."""
    for meaning, _, sole, *_, outcome in every_outcome():
        if outcome.job_action is JobAction.HOLD:
            assert meaning in MAY_BE_ACCEPTED or not sole
            assert outcome.effect_state is EffectState.HELD
            assert not outcome.nothing_open


def test_nothing_is_called_closed_that_may_be_open() -> None:
    """The age of an open try is what the provider's memory is measured against."""
    for meaning, _, sole, *_, outcome in every_outcome():
        if outcome.effect_state is EffectState.OPEN and outcome.nothing_open:
            assert meaning not in MAY_BE_ACCEPTED
            assert sole


def test_without_a_memory_nothing_possible_is_repeated_unless_the_user_said_so() -> None:
    """Under ``hold`` a retry follows only answers after which this try was not accepted."""
    for meaning, provider, *_, outcome in every_outcome():
        if provider == "hold" and outcome.job_action is JobAction.RETRY:
            assert meaning not in MAY_BE_ACCEPTED


def test_only_a_failure_among_real_answers_costs_an_attempt() -> None:
    """Outages, throttling and the account's faults say nothing about a job."""
    for meaning, _, _, answers, _, _, outcome in every_outcome():
        if outcome.job_action is JobAction.RETRY and not outcome.refund:
            assert meaning is Meaning.FAILED
            assert answers


def test_no_answer_to_an_outage_ever_ends_a_job_that_can_be_repeated() -> None:
    """Whatever attempts were spent before: 503 for an hour leaves nothing dead and nothing held."""
    for meaning, provider, _, answers, _, _, outcome in every_outcome():
        outage = meaning in {Meaning.UNAVAILABLE, Meaning.UNREACHED, Meaning.THROTTLED} or (
            meaning is Meaning.FAILED and not answers
        )
        if outage and provider != "hold":
            assert outcome.job_action is JobAction.RETRY


def test_a_real_answer_is_one_from_a_working_provider_and_account() -> None:
    """What says nothing about the lane's health is not counted for it."""
    working = {Meaning.ACCEPTED, Meaning.REFUSED, Meaning.IN_PROGRESS, Meaning.KEY_TAKEN}
    assert set(REAL) == working


def test_an_acceptance_brings_the_providers_id() -> None:
    """It stands in the ledger from then on."""
    assert decide(Meaning.ACCEPTED, message_id="m-1").message_id == "m-1"


def unreadable_again(provider: str, *, lane_at_fault: bool = False) -> Outcome:
    """The second success of another shape of the same effect."""
    return after_answer(
        Answer(Meaning.ACCEPTED_UNREADABLE, "http_200"),
        JOB,
        replace(ATTEMPT, sole_open=False, last_detail=UNREADABLE),
        POLICIES[provider],
        lane_answers=True,
        lane_at_fault=lane_at_fault,
    )


def test_an_unreadable_success_is_asked_for_once_more_where_that_brings_the_id() -> None:
    """The ledger remembers that it was; the second one is believed, and flagged."""
    first = decide(Meaning.ACCEPTED_UNREADABLE, "replays")
    assert first.detail == UNREADABLE
    second = unreadable_again("replays")
    assert row(second) == DELIVERED
    assert second.detail == "accepted_without_id"


@pytest.mark.parametrize("provider", ["hold", "repeat"])
def test_an_unreadable_success_without_a_memory_is_believed_and_flagged(provider: str) -> None:
    """A repeat would be a second e-mail."""
    outcome = decide(Meaning.ACCEPTED_UNREADABLE, provider)
    assert row(outcome) == DELIVERED
    assert outcome.detail == "accepted_without_id"
    assert outcome.message_id is None


@pytest.mark.parametrize("provider", POLICIES)
def test_an_unreadable_success_that_others_meet_too_is_not_believed(provider: str) -> None:
    """A proxy that answers 200 to everything has delivered nothing: several in a row from
    different effects are a misconfiguration, and no e-mail may be reported as sent by it.
    """
    for outcome in (
        unreadable_again(provider, lane_at_fault=True),
        decide(Meaning.ACCEPTED_UNREADABLE, provider, lane_at_fault=True),
    ):
        assert outcome.effect_state is not EffectState.DELIVERED
        assert outcome.job_action in {JobAction.RETRY, JobAction.HOLD}
        assert not outcome.nothing_open


def test_a_refusal_of_a_repeat_beyond_the_memory_leaves_the_earlier_try_unknown() -> None:
    """Where the user has chosen to repeat, the provider's refusal no longer says that the earlier
    try was not accepted: the key is forgotten by then. Dead would mean surely not sent.
    """
    policy = replace(POLICIES["replays"], repeat_unknown=True)
    beyond = replace(ATTEMPT, sole_open=False, call_before=float("inf"))
    within = replace(ATTEMPT, sole_open=False, call_before=1000.0)
    given: dict[str, Any] = {"lane_answers": True, "lane_at_fault": False}
    answer = Answer(Meaning.REFUSED, "http_000")
    assert row(after_answer(answer, JOB, within, policy, **given)) == REJECTED
    assert row(after_answer(answer, JOB, beyond, policy, **given)) == held("earlier_try_unknown")


@pytest.mark.parametrize(
    ("own_cap", "attempts", "action"),
    [(None, 4, "retry"), (None, 5, "hold"), (1, 1, "hold"), (2, 1, "retry"), (9, 8, "retry")],
)
def test_the_jobs_own_cap_goes_before_the_default(
    own_cap: int | None, attempts: int, action: str
) -> None:
    """max_attempts calls are made, not one more and not one less (case-35)."""
    job = replace(JOB, max_attempts=own_cap, attempts=attempts)
    answer = Answer(Meaning.FAILED, "http_500")
    outcome = after_answer(
        answer, job, ATTEMPT, POLICIES["replays"], lane_answers=True, lane_at_fault=False
    )
    assert outcome.job_action == action


@pytest.mark.parametrize(
    ("requests_sent", "low", "high"), [(1, 8, 10), (2, 16, 20), (7, 480, 600), (1100, 480, 600)]
)
@pytest.mark.parametrize("meaning", [Meaning.FAILED, Meaning.UNAVAILABLE, Meaning.UNREACHED])
def test_each_further_request_waits_longer(
    meaning: Meaning, requests_sent: int, low: float, high: float
) -> None:
    """Whether it cost an attempt or not."""
    outcome = after_answer(
        Answer(meaning, "http_000"),
        JOB,
        replace(ATTEMPT, requests_sent=requests_sent),
        POLICIES["replays"],
        lane_answers=False,
        lane_at_fault=False,
    )
    assert low <= outcome.delay_seconds <= high


@pytest.mark.parametrize(
    ("meaning", "retry_after", "low", "high"),
    [
        (Meaning.THROTTLED, 0.0, 1, 1),
        (Meaning.THROTTLED, 7.0, 7, 7),
        (Meaning.THROTTLED, 86_400.0, RETRY_AFTER_SECONDS_MAX, RETRY_AFTER_SECONDS_MAX),
        (Meaning.THROTTLED, float("inf"), RETRY_AFTER_SECONDS_MAX, RETRY_AFTER_SECONDS_MAX),
        (Meaning.THROTTLED, -5.0, 1, 1),
        (Meaning.UNAVAILABLE, 7.0, 7, 7),
        (Meaning.THROTTLED, None, 64, 80),
    ],
)
def test_retry_after_is_obeyed_within_reason(
    meaning: Meaning, retry_after: float | None, low: float, high: float
) -> None:
    """The provider knows best when; but nobody sends a job away for a day, or into the past."""
    outcome = decide(meaning, retry_after_seconds=retry_after)
    assert low <= outcome.delay_seconds <= high


def test_retry_after_never_shortens_the_wait_of_a_failure_of_ones_own() -> None:
    """A job that fails by itself backs off, whatever header comes with it."""
    outcome = decide(Meaning.FAILED, lane_answers=True, retry_after_seconds=1.0)
    assert 64 <= outcome.delay_seconds <= 80
    longer = decide(Meaning.FAILED, lane_answers=True, retry_after_seconds=300.0)
    assert longer.delay_seconds == 300


@pytest.mark.parametrize(
    ("meaning", "given", "detail"),
    [
        (Meaning.REFUSED, {}, "http_000: no such domain"),
        (Meaning.THROTTLED, {}, "http_000: no such domain"),
        (Meaning.KEY_TAKEN, {}, "key_taken: http_000: no such domain"),
        (Meaning.FAILED, {"provider": "hold"}, "no_memory: http_000: no such domain"),
        (
            Meaning.FAILED,
            {"lane_answers": True, "attempts": 5},
            "max_attempts: http_000: no such domain",
        ),
    ],
)
def test_the_ledger_keeps_the_providers_own_words(
    meaning: Meaning, given: dict[str, Any], detail: str
) -> None:
    """Whoever has to decide about an effect reads what happened last."""
    assert decide(meaning, detail="no such domain", **given).detail == detail
    assert decide(meaning, **given).detail == detail.removesuffix(": no such domain")


@pytest.mark.parametrize("sole_open", [True, False])
def test_a_call_that_was_never_started_costs_nothing_and_opens_nothing(sole_open: bool) -> None:
    """The intent is taken back; an earlier try that is open stays so."""
    outcome = not_started(replace(ATTEMPT, sole_open=sole_open), "lease_too_short")
    assert row(outcome) == Row(
        "give_back", "open", nothing_open=sole_open, refund=True, reason="lease_too_short"
    )
    assert outcome.requests_seen == ATTEMPT.requests_sent
    assert outcome.delay_seconds == 0
