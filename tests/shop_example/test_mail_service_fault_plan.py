"""Who meets which fault: rates, targets and dice."""

from __future__ import annotations

from collections import Counter

import pytest

from shop_example.mail_service.fault_plan import (
    FaultPlan,
    Target,
    checked_rates,
    rates_from_text,
    roll_of,
)
from shop_example.mail_service.faults import FaultError


def names(plan: FaultPlan, requests: range) -> list[str | None]:
    """The faults that these requests meet."""
    faults = (plan.choose(seq, f"key-{seq}", 1) for seq in requests)
    return [None if fault is None else fault.name for fault in faults]


def test_rates_are_kept_on_average() -> None:
    """Of 20,000 requests about the asked share meets each fault, and the rest none."""
    plan = FaultPlan(rates_from_text("drop_after_accept=0.1, 503=0.05"), seed=1)
    met = Counter(names(plan, range(20_000)))
    assert met["drop_after_accept"] == pytest.approx(2_000, rel=0.1)
    assert met["503_before"] == pytest.approx(1_000, rel=0.1)
    assert met.keys() == {None, "drop_after_accept", "503_before"}


def test_rates_of_one_leave_nobody_out() -> None:
    """A total outage is total."""
    assert set(names(FaultPlan({"503_before": 1.0}, seed=3), range(5_000))) == {"503_before"}


def test_the_same_seed_gives_the_same_faults_from_any_request_on() -> None:
    """Reproducible, also for a service that was restarted in the middle."""
    rates = {"stall": 0.3, "500_after": 0.3}
    whole = names(FaultPlan(rates, seed=7), range(200))
    assert names(FaultPlan(rates, seed=7), range(100, 200)) == whole[100:]
    assert names(FaultPlan(rates, seed=8), range(200)) != whole


def test_rolls_are_from_0_to_below_1() -> None:
    """However the digest falls."""
    rolls = [roll_of(1, seq) for seq in range(10_000)]
    assert min(rolls) >= 0
    assert max(rolls) < 1


def test_a_target_strikes_its_key_alone_and_as_often_as_asked() -> None:
    """Two times for that key, never for another."""
    plan = FaultPlan({}, seed=0)
    plan.set({}, [Target("a", "stall", times=2)])
    met = [
        plan.choose(seq, key, turn)
        for seq, key, turn in ((1, "b", 1), (2, "a", 1), (3, "a", 2), (4, "a", 3))
    ]
    assert [fault and fault.name for fault in met] == [None, "stall", "stall", None]
    assert plan.targeted == ()


def test_a_target_may_wait_for_the_nth_request_of_its_key() -> None:
    """The second request meets it, the first and the third don't."""
    plan = FaultPlan({}, seed=0)
    plan.set({}, [Target("a", "stall", nth=2)])
    met = [plan.choose(seq, "a", seq) for seq in (1, 2, 3)]
    assert [fault is not None for fault in met] == [False, True, False]


def test_a_target_for_any_key_also_strikes_requests_without_one() -> None:
    """The star is for whoever comes next."""
    plan = FaultPlan({}, seed=0)
    plan.set({}, [Target("*", "stall"), Target("*", "late")])
    met = [plan.choose(1, None, 0), plan.choose(2, "a", 1)]
    assert met[0] is None
    assert met[1] is not None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense=0.1", "there is no fault 'nonsense'"),
        ("stall", "NAME=RATE"),
        ("stall=often", "NAME=RATE"),
        ("stall=1.1", "from 0 to 1"),
        ("stall=-0.1", "from 0 to 1"),
        ("stall=nan", "from 0 to 1"),
        ("stall=0.6,late=0.6", "add up to 1.2"),
    ],
)
def test_rates_that_make_no_sense_are_refused(text: str, problem: str) -> None:
    """One line that names what is wrong."""
    with pytest.raises(FaultError, match=problem):
        rates_from_text(text)


@pytest.mark.parametrize("rate", [True, "0.1", None, [0.1]])
def test_a_rate_is_a_number(rate: object) -> None:
    """JSON can say other things."""
    with pytest.raises(FaultError, match="from 0 to 1"):
        checked_rates({"stall": rate})


@pytest.mark.parametrize(
    "values",
    [
        [],
        {"key": "a"},
        {"key": "a", "fault": "nonsense"},
        {"key": 7, "fault": "stall"},
        {"key": "a", "fault": "stall", "times": 0},
        {"key": "a", "fault": "stall", "nth": True},
        {"key": "a", "fault": "stall", "nth": "2"},
        {"key": "a", "fault": "stall", "when": "now"},
    ],
)
def test_a_target_of_the_wrong_form_is_refused(values: object) -> None:
    """Before it replaces the plan in force."""
    with pytest.raises(FaultError):
        Target.of(values)
