"""A lane: how many calls may start, learnt from the answers, on a clock of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from outbox.lane import (
    OUTAGE_AFTER,
    OUTAGE_EFFECTS,
    PAUSE_PROBE_SECONDS_FIRST,
    PAUSE_PROBE_SECONDS_MAX,
    PROBE_SECONDS_MAX,
    REFUSALS_TO_PAUSE,
    UNREADABLE_TO_PAUSE,
    Lane,
)
from outbox.outcome import Answer, Meaning

CONCURRENCY = 50
#: Answers without a real one in them, one meaning each.
BAD = [
    Meaning.UNAVAILABLE,
    Meaning.FAILED,
    Meaning.UNREACHED,
]
REFUSED = Answer(Meaning.REFUSED, "http_422 validation_error")
BARE = Answer(Meaning.REFUSED_BARE, "http_403")
UNREADABLE = Answer(Meaning.ACCEPTED_UNREADABLE, "http_200")
ACCEPTED = Answer(Meaning.ACCEPTED, "http_200", message_id="m")
MISCONFIGURED = Answer(Meaning.MISCONFIGURED, "http_401")


class Road:
    """A lane with a clock; each answer is to an effect and a recipient of its own, if not said."""

    def __init__(self, concurrency: int = CONCURRENCY, rate: float | None = None) -> None:
        self.now = 1000.0
        self.lane = Lane(concurrency, rate, dice=lambda: 0.0)
        self._numbers: Iterator[int] = count(1)

    def answer(self, answer: Answer | Meaning, effect: str = "", party: str = "") -> bool:
        """Take an answer as the consumer does; says whether the lane is at fault."""
        number = next(self._numbers)
        if isinstance(answer, Meaning):
            answer = Answer(answer, "http_000")
        effect, party = effect or f"effect-{number}", party or f"party-{number}"
        at_fault = self.lane.at_fault(answer, effect)
        self.lane.record(answer, effect, party, self.now)
        return at_fault

    def down(self) -> bool:
        """Whether only probes may go."""
        return self.lane.down

    def paused(self) -> str | None:
        """Why the lane is paused, if it is."""
        return self.lane.paused

    def slots(self, in_flight: int = 0) -> int:
        """How many more may start now."""
        return self.lane.slots(in_flight, self.now)

    def wait(self) -> float:
        """Let the time pass that the lane asks for, and say how much it was."""
        seconds = self.lane.wait_seconds(self.now)
        self.now += seconds
        return seconds

    def outage(self) -> None:
        """As many bad answers, from different effects, as make an outage."""
        for _ in range(OUTAGE_AFTER):
            self.answer(Meaning.FAILED)
        assert self.down()


@pytest.fixture
def road() -> Road:
    """A lane that has seen nothing yet."""
    return Road()


# -- the usual day -------------------------------------------------------------------------------


@pytest.mark.parametrize(("in_flight", "slots"), [(0, 50), (1, 49), (50, 0), (60, 0)])
def test_a_fresh_lane_takes_as_many_as_it_may(road: Road, in_flight: int, slots: int) -> None:
    """The concurrency is the limit, and what is in flight counts."""
    assert road.slots(in_flight) == slots
    assert road.wait() == 0
    assert not road.down()


def test_real_answers_never_close_a_lane(road: Road) -> None:
    """Acceptances, single refusals, keys in progress or taken: the provider works."""
    for _ in range(100):
        road.answer(ACCEPTED)
        road.answer(Answer(Meaning.REFUSED, "http_422"))
        road.answer(Meaning.IN_PROGRESS)
        road.answer(Meaning.KEY_TAKEN)
    assert road.slots() == CONCURRENCY
    assert road.paused() is None


# -- outages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("meaning", BAD)
def test_a_run_without_a_real_answer_is_an_outage(road: Road, meaning: Meaning) -> None:
    """One fewer is not; then only a probe may go, after a while."""
    for _ in range(OUTAGE_AFTER - 1):
        road.answer(meaning)
    assert not road.down()
    assert road.slots() == CONCURRENCY
    road.answer(meaning)
    assert road.down()
    assert road.paused() is None
    assert road.slots() == 0
    assert road.wait() == 1
    assert road.slots() == 1
    assert road.slots(in_flight=1) == 0


def test_a_run_of_few_effects_is_no_outage(road: Road) -> None:
    """Jobs that fail for ever by themselves must not close the lane to all others."""
    for _ in range(20):
        for number in range(OUTAGE_EFFECTS - 1):
            road.answer(Meaning.FAILED, effect=f"poison-{number}")
    assert not road.down()
    road.answer(Meaning.FAILED, effect="another")
    assert road.down()


def test_a_real_answer_in_between_breaks_the_run(road: Road) -> None:
    """So many in a row, not so many in all."""
    for _ in range(20):
        for _ in range(OUTAGE_AFTER - 1):
            road.answer(Meaning.FAILED)
        road.answer(ACCEPTED)
    assert not road.down()


def test_probes_come_ever_more_seldom_up_to_a_limit(road: Road) -> None:
    """1, 2, 4 ... 60 seconds: an hour of outage costs about as many requests as minutes."""
    road.outage()
    waits = []
    for _ in range(10):
        waits.append(road.wait())
        road.answer(Meaning.FAILED)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_an_hour_of_outage_costs_few_requests(road: Road) -> None:
    """However many jobs wait: about one a minute."""
    road.outage()
    end, probes = road.now + 3600, 0
    while road.now < end:
        if road.slots() > 0:
            probes += 1
            road.answer(Meaning.UNAVAILABLE)
        road.now += max(road.wait(), 0.1)
    assert probes <= 70


def test_what_was_in_flight_together_counts_as_one_probe(road: Road) -> None:
    """Fifty calls that fail at once don't make the lane wait for fifty times."""
    for _ in range(CONCURRENCY):
        road.answer(Meaning.FAILED)
    assert road.wait() == 1


def test_jitter_makes_probes_earlier_never_later() -> None:
    """Several consumers of one account don't probe at the same moment."""
    lane = Lane(CONCURRENCY, dice=lambda: 0.999)
    for number in range(OUTAGE_AFTER):
        lane.record(Answer(Meaning.FAILED, "x"), f"e-{number}", f"p-{number}", 0.0)
    assert 0.8 <= lane.wait_seconds(0.0) < 1


def test_every_other_probe_passes_over_open_effects(road: Road) -> None:
    """Those go first else: if they fail for ever, new work would never be tried."""
    assert not road.lane.probes_new_work
    road.outage()
    kinds = []
    for _ in range(4):
        road.wait()
        kinds.append(road.lane.probes_new_work)
        road.answer(Meaning.FAILED, effect="poison")
    assert kinds == [False, True, False, True]


def test_retry_after_of_an_outage_is_obeyed_within_reason(road: Road) -> None:
    """A 503 that says when to come back closes the lane for so long, a minute at most."""
    road.answer(Answer(Meaning.UNAVAILABLE, "http_503", retry_after_seconds=7))
    assert road.slots() == 0
    assert road.wait() == 7
    road.answer(Answer(Meaning.UNAVAILABLE, "http_503", retry_after_seconds=86_400))
    assert road.wait() == PROBE_SECONDS_MAX


def test_after_an_outage_the_flow_doubles_with_each_real_answer(road: Road) -> None:
    """Nobody stampedes: 2, 4, 8 ... and never above the concurrency."""
    road.outage()
    road.wait()
    flows = []
    for _ in range(7):
        road.answer(ACCEPTED)
        flows.append(road.slots())
    assert flows == [2, 4, 8, 16, 32, 50, 50]
    assert not road.down()


@pytest.mark.parametrize(
    "meaning", [Meaning.ACCEPTED, Meaning.REFUSED, Meaning.IN_PROGRESS, Meaning.KEY_TAKEN]
)
def test_any_real_answer_ends_an_outage(road: Road, meaning: Meaning) -> None:
    """The provider is back, whatever it said of that one job."""
    road.outage()
    road.wait()
    road.answer(meaning)
    assert not road.down()
    assert road.slots() == 2


def test_a_second_outage_probes_from_the_start(road: Road) -> None:
    """What an earlier one has taught is forgotten with it."""
    road.outage()
    for _ in range(5):
        road.wait()
        road.answer(Meaning.FAILED)
    road.wait()
    road.answer(ACCEPTED)
    road.outage()
    assert road.wait() == 1


# -- pauses --------------------------------------------------------------------------------------


def test_a_refused_account_pauses_the_lane_at_once(road: Road) -> None:
    """401 and the like: the reason is kept for people, probes go out now and then."""
    road.answer(MISCONFIGURED)
    assert road.paused() == "http_401"
    assert road.down()
    assert road.slots() == 0
    waits = []
    for _ in range(7):
        waits.append(road.wait())
        assert road.slots() == 1
        assert road.slots(in_flight=1) == 0
        road.answer(MISCONFIGURED)
    first, most = PAUSE_PROBE_SECONDS_FIRST, PAUSE_PROBE_SECONDS_MAX
    assert waits == [first, 2 * first, 4 * first, 8 * first, 16 * first, most, most]


@pytest.mark.parametrize("answer", [ACCEPTED, REFUSED])
def test_a_pause_ends_when_a_probe_shows_that_the_account_works(road: Road, answer: Answer) -> None:
    """And the flow grows slowly from there."""
    road.answer(MISCONFIGURED)
    road.wait()
    road.answer(answer)
    assert road.paused() is None
    assert road.slots() == 2


@pytest.mark.parametrize("meaning", [*BAD, Meaning.IN_PROGRESS, Meaning.KEY_TAKEN])
def test_a_pause_outlives_what_says_nothing_about_the_account(road: Road, meaning: Meaning) -> None:
    """A timeout is no proof that the key is right again."""
    road.answer(MISCONFIGURED)
    road.wait()
    road.answer(meaning)
    assert road.paused() == "http_401"
    assert road.slots(in_flight=1) == 0


def test_a_pause_for_another_reason_says_the_latest_one(road: Road) -> None:
    """People mend one thing after the other."""
    road.answer(MISCONFIGURED)
    road.wait()
    road.answer(Answer(Meaning.MISCONFIGURED, "http_403 unverified_domain"))
    assert road.paused() == "http_403 unverified_domain"


def test_the_same_refusal_of_several_effects_is_the_accounts_fault(road: Road) -> None:
    """The first few are refused for themselves; the fifth pauses the lane, and none is any more."""
    faults = [road.answer(REFUSED) for _ in range(REFUSALS_TO_PAUSE + 3)]
    before = REFUSALS_TO_PAUSE - 1
    assert faults == [False] * before + [True] * 4
    assert road.paused() == REFUSED.reason


def test_one_effect_refused_again_and_again_pauses_nothing(road: Road) -> None:
    """It takes different effects."""
    faults = [road.answer(REFUSED, effect="the-same") for _ in range(20)]
    assert not any(faults)
    assert road.paused() is None


def test_different_refusals_are_each_their_own_fault(road: Road) -> None:
    """One has no recipient, one is too large: that is no misconfiguration."""
    for number in range(20):
        assert not road.answer(Answer(Meaning.REFUSED, f"http_422 reason_{number % 2}"))
    assert road.paused() is None


def test_an_acceptance_in_between_shows_that_the_account_is_fine(road: Road) -> None:
    """In a row, or not at all."""
    for _ in range(20):
        for _ in range(REFUSALS_TO_PAUSE - 1):
            assert not road.answer(REFUSED)
        road.answer(ACCEPTED)
    assert road.paused() is None


def test_after_a_pause_for_refusals_an_acceptance_clears_the_run(road: Road) -> None:
    """The next refusal is that effect's own again."""
    for _ in range(REFUSALS_TO_PAUSE):
        road.answer(REFUSED)
    road.wait()
    road.answer(ACCEPTED)
    assert road.paused() is None
    assert not road.answer(REFUSED)


def test_a_bare_403_is_the_accounts_once_two_recipients_have_got_it(road: Road) -> None:
    """A second effect with another recipient: no job is at fault, the lane pauses."""
    assert road.answer(BARE, effect="e-1", party="a")
    assert road.paused() is None
    assert road.answer(BARE, effect="e-2", party="b")
    assert road.paused() == "http_403"
    assert road.answer(BARE, effect="e-1", party="a")


def test_a_bare_403_of_one_recipient_alone_is_that_jobs_own(road: Road) -> None:
    """It is tried once more, since it might have been the account's; then it is refused."""
    assert road.answer(BARE, effect="e-1", party="a")
    assert not road.answer(BARE, effect="e-1", party="a")
    assert road.paused() is None


def test_a_second_effect_of_the_same_recipient_does_not_pause(road: Road) -> None:
    """That recipient is blocked, and nobody else."""
    assert road.answer(BARE, effect="e-1", party="a")
    assert road.answer(BARE, effect="e-2", party="a")
    assert road.paused() is None
    assert not road.answer(BARE, effect="e-2", party="a")


def test_a_bare_403_ends_its_job_also_while_all_others_are_accepted(road: Road) -> None:
    """Else it would be tried for ever, unspent: an acceptance in between clears the run of the
    account, not the memory that this effect has had it before.
    """
    assert road.answer(BARE, effect="e-1", party="a")
    for _ in range(3):
        road.answer(ACCEPTED)
    assert not road.answer(BARE, effect="e-1", party="a")
    assert road.paused() is None


def test_a_403_and_a_404_are_two_different_things(road: Road) -> None:
    """Two recipients, but not the same answer."""
    road.answer(BARE, effect="e-1", party="a")
    road.answer(Answer(Meaning.REFUSED_BARE, "http_404"), effect="e-2", party="b")
    assert road.paused() is None


def test_unreadable_successes_of_several_effects_pause_the_lane(road: Road) -> None:
    """Something answers 200 to everything, and it is not the provider."""
    for number in range(1, UNREADABLE_TO_PAUSE):
        road.answer(UNREADABLE, effect=f"e-{number}")
        assert road.paused() is None
    road.answer(UNREADABLE, effect="e-last")
    assert road.paused() == "http_200"


def test_unreadable_successes_of_several_effects_say_nothing_about_any_of_them(
    road: Road,
) -> None:
    """Once the lane is paused for them, the next one of the same effect is not believed either."""
    assert not road.answer(UNREADABLE, effect="e-1")
    assert not road.answer(UNREADABLE, effect="e-2")
    assert road.answer(UNREADABLE, effect="e-3")
    road.wait()
    assert road.answer(UNREADABLE, effect="e-1")


def test_unreadable_successes_of_one_effect_pause_nothing(road: Road) -> None:
    """One odd answer, and its repeat."""
    for _ in range(UNREADABLE_TO_PAUSE + 1):
        assert not road.answer(UNREADABLE, effect="e-1")
    assert road.paused() is None


def test_a_readable_success_in_between_shows_that_the_provider_is_there(road: Road) -> None:
    """In a row, or not at all."""
    for number in range(10):
        road.answer(UNREADABLE, effect=f"e-{number}")
        road.answer(ACCEPTED)
    assert road.paused() is None


@pytest.mark.parametrize(
    "meaning",
    [m for m in Meaning if m not in {Meaning.REFUSED, Meaning.REFUSED_BARE}],
)
def test_other_first_answers_say_nothing_of_a_fault(road: Road, meaning: Meaning) -> None:
    """``at_fault`` is about refusals; what pauses or closes the lane has its own rules."""
    assert not road.answer(meaning)


# -- throttling and rates ------------------------------------------------------------------------


def test_throttling_halves_the_flow_and_waits(road: Road) -> None:
    """As long as the provider says, a second if it says nothing, a minute at most."""
    waits, flows = [], []
    for retry_after in (None, 0, 7, 86_400):
        road.answer(Answer(Meaning.THROTTLED, "http_429", retry_after_seconds=retry_after))
        waits.append(road.wait())
        flows.append(road.slots())
    assert waits == [1, 1, 7, PROBE_SECONDS_MAX]
    assert flows == [25, 12, 6, 3]
    assert not road.down()


def test_throttling_never_stops_the_flow_for_good(road: Road) -> None:
    """One at a time goes on, and real answers let it grow again."""
    for _ in range(100):
        road.answer(Meaning.THROTTLED)
    road.wait()
    assert road.slots() == 1
    flows = []
    for _ in range(6):
        road.answer(ACCEPTED)
        flows.append(road.slots())
    assert flows == [2, 4, 8, 16, 32, 50]


def test_an_answer_to_a_call_from_before_does_not_lift_the_throttle(road: Road) -> None:
    """With fifty in flight the next one is accepted a moment later; Retry-After holds all the
    same, else the provider's limit is run against again and again.
    """
    road.answer(Answer(Meaning.THROTTLED, "http_429", retry_after_seconds=30))
    road.now += 0.1
    road.answer(ACCEPTED)
    assert road.slots() == 0
    assert road.lane.wait_seconds(road.now) == pytest.approx(29.9)


def test_jitter_makes_a_throttled_lane_wait_longer_never_shorter() -> None:
    """The provider's word is a lower bound."""
    lane = Lane(CONCURRENCY, dice=lambda: 0.999)
    lane.record(Answer(Meaning.THROTTLED, "x", retry_after_seconds=10), "e", "p", 0.0)
    assert 10 < lane.wait_seconds(0.0) <= 12


def start_for(road: Road, seconds: float) -> int:
    """Start whatever may start for so long, and count it."""
    end, started = road.now + seconds, 0
    while road.now < end:
        for _ in range(road.slots()):
            road.lane.started(road.now)
            started += 1
        road.now += min(max(road.lane.wait_seconds(road.now), 0.001), end - road.now + 0.001)
    return started


@pytest.mark.parametrize("rate", [0.5, 1, 10, 33.3, 100])
def test_a_rate_is_kept_over_time(rate: float) -> None:
    """No more than the rate, but for one small burst; and hardly less."""
    started = start_for(Road(rate=rate), 60)
    assert 60 * rate * 0.97 - 1 <= started <= 60 * rate + max(1, rate / 10) + 1


def test_a_rate_is_no_credit_for_idle_hours() -> None:
    """After a quiet night not all of it may go at once."""
    road = Road(rate=20)
    assert road.slots() == 1
    road.now += 3600
    assert road.slots() == 2


def test_a_rate_says_when_the_next_call_may_start() -> None:
    """So that nobody polls for it."""
    road = Road(rate=4)
    road.lane.started(road.now)
    assert road.slots() == 0
    assert road.lane.wait_seconds(road.now) == pytest.approx(0.25)
    road.now += 0.25
    assert road.slots() == 1


def test_a_rate_and_a_closed_lane_wait_for_the_later_one() -> None:
    """Whichever of them holds longest."""
    road = Road(rate=4)
    road.lane.started(road.now)
    road.answer(Answer(Meaning.THROTTLED, "http_429", retry_after_seconds=5))
    assert road.lane.wait_seconds(road.now) == 5


def test_without_a_rate_only_the_concurrency_counts() -> None:
    """Starting costs nothing then."""
    road = Road()
    for _ in range(1000):
        road.lane.started(road.now)
    assert road.slots() == CONCURRENCY
