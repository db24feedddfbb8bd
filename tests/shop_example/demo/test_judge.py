"""The judge: each kind of wrong is found in records made by hand, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from shop_example.demo.judge import Evidence, Held, Verdict, judge
from shop_example.mail_service.events import Closed, Decided, Event, Received

KEY, OTHER = "email-order-1", "email-order-2"
KILL = [10.5]


@dataclass
class Record:
    """A mail-service's record, written request by request."""

    events: list[Event] = field(default_factory=list)

    def request(
        self,
        at: float,
        key: str | None = KEY,
        *,
        accepted: bool = True,
        replayed: bool = False,
        status: int | None = 200,
        fault: str | None = None,
        decided: bool = True,
        abandoned: bool = False,
    ) -> Record:
        """Add a request that arrived at ``at`` and was decided 0.1 s later."""
        seq = len(self.events) + 1
        self.events.append(
            Received(
                at=at,
                clock=at,
                seq=seq,
                connection=seq,
                method="POST",
                path="/emails",
                key=key,
                body_sha256="0" * 64,
                body_bytes=100,
                to=("ada@example.com",),
                subject="Your order 1",
            )
        )
        if decided:
            self.events.append(
                Decided(
                    at=at + 0.1,
                    clock=at + 0.1,
                    seq=seq,
                    key=key,
                    accepted=accepted,
                    replayed=replayed,
                    email_id="id" if accepted or replayed else None,
                    status=status,
                    name=None,
                    fault=fault,
                )
            )
        if abandoned:
            self.events.append(
                Closed(at=at + 1.5, connection=seq, answered=False, by="client", reset=False)
            )
        return self


def verdict(
    record: Record,
    *,
    keys: bool = True,
    committed: Sequence[str] = (KEY,),
    kills: Sequence[float] = (),
    held: Sequence[Held] = (),
) -> Verdict:
    """What the judge says of it."""
    return judge(Evidence(keys, frozenset(committed), 7, kills, record.events, held))


def held(reason: str = "no_memory: read_error", begun_at: float = 10.0) -> list[Held]:
    """The order's effect waits for a person."""
    return [Held(KEY, reason, begun_at)]


def test_an_order_with_one_email_is_as_it_should_be() -> None:
    """One request, accepted and answered: all counts of wrongs are 0."""
    found = verdict(Record().request(10))
    assert found.clean
    assert (found.orders_committed, found.requests, found.emails_accepted) == (1, 1, 1)
    assert found.orders_rolled_back == 7


def test_two_emails_for_an_order_are_a_duplicate() -> None:
    """However well each is explained."""
    dropped = Record().request(10, status=None, fault="drop_after_accept").request(12)
    found = verdict(dropped, keys=False)
    assert (found.duplicates, found.emails_accepted, found.surplus_requests) == (1, 2, 0)
    assert not found.clean


def test_a_replay_is_no_second_email() -> None:
    """A repeat that the provider answers from its memory is accepted once."""
    record = Record().request(10, status=None, fault="drop_after_accept")
    found = verdict(record.request(12, accepted=False, replayed=True))
    assert found.clean
    assert (found.requests, found.emails_accepted, found.answers_dropped) == (2, 1, 1)


@pytest.mark.parametrize("keys", [True, False])
def test_an_order_without_an_email_is_lost(keys: bool) -> None:
    """No request at all, and not held."""
    found = verdict(Record(), keys=keys)
    assert found.lost == 1
    assert not found.clean


def test_an_order_whose_only_request_was_refused_is_lost() -> None:
    """A request is no e-mail."""
    found = verdict(Record().request(10, accepted=False, status=429, fault="429"))
    assert found.lost == 1


def test_held_is_lost_where_a_repeat_would_be_replayed() -> None:
    """With keys there is no reason to hold."""
    found = verdict(Record(), held=held(), kills=KILL)
    assert (found.lost, found.needless_holds, found.held) == (1, 1, 1)


def test_an_email_for_a_rolled_back_order_is_found() -> None:
    """And its request is one that nothing explains."""
    found = verdict(Record().request(10).request(11, key=OTHER))
    assert (found.sent_for_rolled_back, found.surplus_requests) == (1, 1)


def test_a_request_for_a_rolled_back_order_is_surplus_even_if_refused() -> None:
    """Nobody should have asked."""
    found = verdict(Record().request(10).request(11, key=OTHER, accepted=False, status=503))
    assert (found.sent_for_rolled_back, found.surplus_requests) == (0, 1)


def test_a_request_without_a_key_belongs_to_no_order() -> None:
    """The order is lost, the e-mail uncalled for."""
    found = verdict(Record().request(10, key=None))
    assert (found.lost, found.sent_for_rolled_back, found.surplus_requests) == (1, 1, 1)


def test_a_repeat_that_nothing_explains_is_surplus() -> None:
    """The provider remembers and replays; it was asked for nothing all the same."""
    found = verdict(Record().request(10).request(15, accepted=False, replayed=True))
    assert (found.duplicates, found.surplus_requests) == (0, 1)
    assert found.problems == [f"{KEY}: nothing explains its request no. 2"]


@pytest.mark.parametrize(
    "first",
    [
        Record().request(10, status=None, fault="drop_after_accept"),
        Record().request(10, status=200, fault="garbage_200"),
        Record().request(10, accepted=False, status=503, fault="503_before"),
        Record().request(10, accepted=False, status=429, fault="429"),
        Record().request(10, accepted=False, status=409),
        Record().request(10, decided=False, accepted=False),
        Record().request(10, abandoned=True),
    ],
    ids=["dropped", "spoilt", "503", "429", "409", "undecided", "gave up waiting"],
)
def test_a_repeat_after_a_fault_or_refusal_is_explained(first: Record) -> None:
    """One more request for each."""
    first = Record(list(first.events))
    found = verdict(first.request(12, accepted=False, replayed=True))
    assert found.surplus_requests == 0


def test_one_fault_explains_one_repeat() -> None:
    """The second repeat follows a request that was answered."""
    record = Record().request(10, status=None, fault="drop_after_accept")
    record.request(12, accepted=False, replayed=True).request(13, accepted=False, replayed=True)
    assert verdict(record).surplus_requests == 1


@pytest.mark.parametrize(
    ("kill", "surplus"),
    [(9.0, 1), (9.8, 0), (10.05, 0), (12.0, 0), (13.0, 1), (20.5, 1)],
    ids=["long before", "as it arrived", "before the answer", "settling", "too late", "after"],
)
def test_a_kill_explains_a_repeat_only_near_the_request(kill: float, surplus: int) -> None:
    """The consumer died with the request in hand, or before it had settled the answer."""
    record = Record().request(10).request(20, accepted=False, replayed=True)
    assert verdict(record, kills=[kill]).surplus_requests == surplus


def test_a_kill_after_the_repeat_explains_nothing() -> None:
    """The repeat was there first."""
    record = Record().request(10).request(10.4, accepted=False, replayed=True)
    assert verdict(record, kills=KILL).surplus_requests == 1


def test_without_keys_an_unanswered_order_is_held() -> None:
    """Accepted or not, nobody was told: held is right, and it isn't lost."""
    for record in (
        Record().request(10, status=None, fault="stall"),
        Record().request(10, accepted=False, status=502, fault="502_before"),
    ):
        found = verdict(record, keys=False, held=held())
        assert found.clean
        assert found.held == 1


def test_an_answered_order_that_is_held_is_held_needlessly() -> None:
    """Its consumer got the answer and lived."""
    found = verdict(Record().request(10), keys=False, held=held())
    assert found.needless_holds == 1
    assert not found.clean


def test_an_answered_order_is_rightly_held_when_its_consumer_was_killed() -> None:
    """The answer was lost with the consumer."""
    assert verdict(Record().request(10), keys=False, held=held(), kills=KILL).clean


def test_a_hold_without_a_reason_is_needless() -> None:
    """A person must see why."""
    record = Record().request(10, status=None, fault="stall")
    assert verdict(record, keys=False, held=held(reason="")).needless_holds == 1


@pytest.mark.parametrize(("kill", "needless"), [(9.0, 1), (10.2, 0), (13.0, 0), (14.0, 1)])
def test_a_hold_without_any_request_needs_a_kill_when_it_began(kill: float, needless: int) -> None:
    """The request may have left, as far as anyone knows."""
    found = verdict(Record(), keys=False, held=held(), kills=[kill])
    assert found.needless_holds == needless


@pytest.mark.parametrize(("kills", "needless"), [([], 1), ([20.1], 0)])
def test_a_refusal_leaves_nothing_open(kills: list[float], needless: int) -> None:
    """After a 429 only a later try, which died before it arrived, explains a hold."""
    record = Record().request(10, accepted=False, status=429, fault="429")
    found = verdict(record, keys=False, held=held(begun_at=20.0), kills=kills)
    assert found.needless_holds == needless


def test_an_email_that_nobody_was_told_of_must_be_held() -> None:
    """Delivered is no word for what was not answered."""
    record = Record().request(10, status=500, fault="500_after")
    found = verdict(record, keys=False)
    assert (found.missing_holds, found.lost) == (1, 0)
    assert not found.clean


def test_a_success_that_came_spoilt_proves_acceptance() -> None:
    """The status was 200, so the order need not be held where nothing can be asked again."""
    assert verdict(Record().request(10, fault="garbage_200"), keys=False).clean


def test_faults_are_counted_by_kind() -> None:
    """And those after acceptance as answers dropped."""
    record = Record().request(10, status=None, fault="stall")
    record.request(12, accepted=False, status=503, fault="503_before")
    record.request(13, accepted=False, replayed=True)
    found = verdict(record)
    assert found.faults == {"503_before": 1, "stall": 1}
    assert found.answers_dropped == 1
