"""The pure decisions where one more or one less makes the difference, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from outbox import evidence as evidence_module
from outbox import lane as lane_module
from outbox.batch import Batch
from outbox.evidence import Evidence
from outbox.lane import Lane
from outbox.legible import legible
from outbox.outcome import Answer, JobAction, Meaning, Outcome, after_answer
from outbox.verdict import ELSEWHERE_SECONDS, Call, wait_for_other, without_effect
from tests.outbox import test_outcome as outcomes
from tests.outbox import test_verdict as verdicts
from tests.outbox.test_evidence import run

REFUSED = Answer(Meaning.REFUSED, "http_422")
BARE = Answer(Meaning.REFUSED_BARE, "http_403")
UNREADABLE = Answer(Meaning.ACCEPTED_UNREADABLE, "http_200")


def lane(dice: float = 0.0) -> Lane:
    """One with a die of the test's own."""
    return Lane(50, dice=lambda: dice)


# -- the lane ------------------------------------------------------------------------------------


def test_a_pause_begins_with_the_fifth_refusal_not_the_sixth() -> None:
    """And the fifth itself is the account's, while an earlier effect asked again is one of four."""
    one = lane()
    for number in range(4):
        assert not one.at_fault(REFUSED, f"k{number}")
        one.record(REFUSED, f"k{number}", "p", 0.0)
    assert one.paused is None
    assert not one.at_fault(REFUSED, "k0"), "three others are not four"
    assert one.at_fault(REFUSED, "k4")
    assert not one.at_fault(replace(REFUSED, reason="http_400"), "k4"), "another refusal"
    one.record(REFUSED, "k4", "p", 0.0)
    assert one.paused == "http_422"


def test_a_third_unreadable_success_is_the_lanes() -> None:
    """One of an effect that was counted already is not."""
    one = lane()
    for key in ("a", "b"):
        assert not one.at_fault(UNREADABLE, key)
        one.record(UNREADABLE, key, "p", 0.0)
    assert not one.at_fault(UNREADABLE, "a")
    assert not one.at_fault(replace(UNREADABLE, reason="http_202"), "c")
    assert one.at_fault(UNREADABLE, "c")


@pytest.mark.parametrize("meaning", [Meaning.FAILED, Meaning.UNREACHED, Meaning.MISCONFIGURED])
def test_other_answers_are_nobodys_fault_by_themselves(meaning: Meaning) -> None:
    """No, not nothing."""
    assert lane().at_fault(Answer(meaning, "r"), "k") is False


def test_of_bare_refusals_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are remembered here; whoever gets it a second time, alone, is at fault itself."""
    monkeypatch.setattr(lane_module, "BARE_REMEMBERED", 2)
    one = lane()
    for key in ("a", "b", "c"):
        one.record(BARE, key, "p", 0.0)
    assert [one.at_fault(BARE, key) for key in ("a", "b", "c")] == [True, False, False]


def test_an_outage_is_over_at_once_and_a_pause_is_not_lifted_by_a_doubtful_answer() -> None:
    """A key in progress is a real answer, and says nothing about the account."""
    one = lane()
    for number in range(5):
        one.record(Answer(Meaning.FAILED, "r"), f"k{number}", "p", 0.0)
    assert one.slots(0, 0.5) == 0
    one.record(Answer(Meaning.ACCEPTED, "ok"), "k", "p", 0.5)
    assert one.slots(0, 0.0) > 0
    one.record(Answer(Meaning.MISCONFIGURED, "http_401"), "k", "p", 1.0)
    one.record(Answer(Meaning.IN_PROGRESS, "http_409"), "k", "p", 2.0)
    assert one.paused == "http_401"
    assert one.slots(0, 15.9) == 0


@pytest.mark.parametrize("retry_after", [None, 0.0, 0.3])
def test_a_throttled_lane_waits_a_fifth_longer_at_most(retry_after: float | None) -> None:
    """The longest throw of the die; the first probe's wait is the least."""
    one = lane(dice=1.0)
    one.record(Answer(Meaning.THROTTLED, "http_429", None, None, retry_after), "k", "p", 0.0)
    assert one.wait_seconds(0.0) == pytest.approx(1.2)


def test_a_short_wait_of_a_throttled_lane_is_the_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that is: one who names no time is asked no later than that."""
    monkeypatch.setattr(lane_module, "PROBE_SECONDS_FIRST", 0.5)
    one = lane()
    one.record(Answer(Meaning.THROTTLED, "http_429"), "k", "p", 0.0)
    assert one.wait_seconds(0.0) == 0.5


def test_a_closed_lane_probes_a_fifth_sooner_at_most() -> None:
    """The longest throw of the die."""
    one = lane(dice=1.0)
    one.record(Answer(Meaning.MISCONFIGURED, "http_401"), "k", "p", 0.0)
    assert one.wait_seconds(0.0) == pytest.approx(15 * 0.8)


def test_a_slow_rate_saves_one_call_and_no_more() -> None:
    """One may start at once, and after any pause one; then the next has to wait its turn."""
    one = Lane(50, 5.0, dice=lambda: 0.0)
    for now in (0.0, 1000.0):
        assert one.slots(0, now) == 1
        assert one.wait_seconds(now) == 0
        one.started(now)
        assert one.slots(0, now) == 0
        assert one.wait_seconds(now) == pytest.approx(0.2)


# -- the batch -----------------------------------------------------------------------------------


async def pressed(
    gaps: Sequence[float], *, limit: int, enough: Callable[[int], bool]
) -> tuple[list[list[int]], float]:
    """Submit a number after each gap; the batches that were made of them, and the time it took."""
    batches: list[list[int]] = []

    async def note(items: Sequence[int]) -> Sequence[int]:
        batches.append(list(items))
        return items

    batch: Batch[int, int] = Batch(note, limit=limit, divisible=ValueError, enough=enough)
    service = asyncio.create_task(batch.serve())
    waiting = []
    for number, gap in enumerate(gaps):
        if gap:
            await asyncio.sleep(gap)  # no time passes: the loop's own clock jumps
        waiting.append(asyncio.create_task(batch.submit(number)))
    await asyncio.gather(*waiting)
    took = asyncio.get_running_loop().time()
    service.cancel()
    await asyncio.gather(service, return_exceptions=True)
    return batches, took


def test_a_batch_waits_a_little_for_what_is_on_its_way() -> None:
    """Until enough wait, and no longer."""
    batches, took = run(pressed([0, 0.01], limit=9, enough=lambda waiting: waiting >= 2))
    assert batches == [[0, 1]]
    assert took == pytest.approx(0.01)


def test_a_batch_goes_without_what_does_not_come() -> None:
    """A little is a fiftieth of a second."""
    batches, took = run(pressed([0], limit=9, enough=lambda waiting: waiting >= 2))
    assert batches == [[0]]
    assert took == pytest.approx(0.02)


def test_a_full_batch_waits_for_nothing() -> None:
    """Whatever is on its way would not go with it."""
    assert run(pressed([0, 0], limit=2, enough=lambda _: False)) == ([[0, 1]], 0)


def test_a_batch_with_enough_goes_at_once() -> None:
    """There is room for more."""
    assert run(pressed([0], limit=2, enough=lambda waiting: waiting == 1)) == ([[0]], 0)


# -- the evidence --------------------------------------------------------------------------------


def test_alone_a_failure_waits_for_nobody() -> None:
    """Where no other answer can come there is no grace to wait."""

    async def story() -> float:
        assert not await Evidence().own_fault("k", 0.0, others=False)
        return asyncio.get_running_loop().time()

    assert run(story()) == 0


def test_of_undecided_failures_the_oldest_is_forgotten_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two are remembered here: the third one's second failure is charged, the first one's not."""
    monkeypatch.setattr(evidence_module, "_UNDECIDED_REMEMBERED", 2)

    async def story() -> list[bool]:
        evidence = Evidence()
        for key in ("a", "b", "c"):
            assert not await evidence.own_fault(key, 1.0, others=False)
        evidence.record("x", real=True, now=2.0)
        # Of this very moment there is no answer, so what was remembered decides.
        return [await evidence.own_fault(key, 3.0, others=False) for key in ("c", "b", "a")]

    assert run(story()) == [True, True, False]


def test_an_answer_of_its_own_between_two_failures_charges_nothing() -> None:
    """Only another effect's answer is a witness."""

    async def story() -> bool:
        evidence = Evidence()
        assert not await evidence.own_fault("k", 1.0, others=False)
        evidence.record("k", real=True, now=2.0)
        return await evidence.own_fault("k", 3.0, others=False)

    assert run(story()) is False


# -- what people and metrics read ----------------------------------------------------------------


def test_a_job_over_its_cap_says_why() -> None:
    """Nobody has called: its claims ended otherwise."""
    job = replace(verdicts.JOB, attempts=6)
    assert without_effect(job, verdicts.REPLAYS) == Outcome(
        JobAction.DEAD, "max_attempts", detail="its last claims ended in crashes"
    )


def test_a_job_that_waits_for_another_says_so() -> None:
    """Unspent, for a moment."""
    assert wait_for_other() == Outcome(
        JobAction.RETRY,
        "effect_at_work_elsewhere",
        refund=True,
        delay_seconds=ELSEWHERE_SECONDS,
    )


@pytest.mark.parametrize(("attempts", "again"), [(5, True), (6, False)])
def test_the_last_attempt_is_still_one(attempts: int, *, again: bool) -> None:
    """A cap of five allows five, whether a try is open or none is."""
    for effect in (verdicts.OPEN, verdicts.CLOSED):
        decided = verdicts.decide(effect, job={"attempts": attempts})
        assert isinstance(decided, Call) is again


@pytest.mark.parametrize(
    "meaning",
    [
        Meaning.ACCEPTED_UNREADABLE, Meaning.MISCONFIGURED, Meaning.THROTTLED, Meaning.UNREACHED,
        Meaning.IN_PROGRESS, Meaning.UNAVAILABLE,
    ],
)  # fmt: skip
def test_what_spends_nothing_refunds_exactly(meaning: Meaning) -> None:
    """A yes, since the database takes nothing else."""
    for at_fault in (True, False):
        decided = after_answer(
            Answer(meaning, "r"), outcomes.JOB, outcomes.ATTEMPT, outcomes.POLICIES["replays"],
            lane_answers=True, lane_at_fault=at_fault,
        )  # fmt: skip
        assert decided.refund is True


def test_legible_text_stays_as_it_is_and_the_rest_is_shown() -> None:
    """Letters of any script stay; what a terminal obeys is spelt out, with nothing between."""
    assert legible("Grüße, 日本\n\u202e\x1b") == "Grüße, 日本\\n\\u202e\\x1b"
