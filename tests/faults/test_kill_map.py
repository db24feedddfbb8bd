"""Kill the shipped consumer at every step of an e-mail's way, and count at the provider.

The steps are found by a run in which nobody dies, and are asserted as a list: a new statement makes
the list longer, and this test red until somebody has looked. A killed consumer is followed by one
that lives. Then, with a provider that replays keys: one accepted e-mail for each order. With one
that keeps none, and ``hold``: never two, and each order without an accepted e-mail is held; held
where the intent was committed and the answer was not, and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from outbox import Outbox
from tests.faults.judge import Order, judge
from tests.faults.orders import payload
from tests.faults.scenarios import PROMOTION, SCENARIOS, SETTINGS, START, WITHOUT_KEYS, Scenario
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.databases import Databases
    from tests.faults.crew import Crew, End, Hand
    from tests.faults.provider import Provider

LATE_SECONDS = 0.6
#: After this point a consumer has committed that it will call.
INTENT = "begin_effects#1:after"


@dataclass(slots=True)
class Trial:
    """One order, the point at which its consumer dies, and what is known of that death."""

    name: str
    point: str | None
    passed: Sequence[str] = field(default_factory=tuple)

    @property
    def topic(self) -> str:
        """Each trial has a topic of its own, so that nobody else's consumer touches its job."""
        return f"email.{self.name}"

    @property
    def key(self) -> str:
        """Its effect."""
        return f"email-{self.name}"

    @property
    def died_between_intent_and_answer(self) -> bool:
        """Whether its consumer had committed a try at the end, and had not settled it."""
        open_ = False
        for point in self.passed:
            if re.fullmatch(r"begin_effects#1:after|reopen_effects#\d:after", point):
                open_ = True
            elif re.fullmatch(r"settle_attempts#\d:after", point):
                open_ = False
        return open_


@dataclass(frozen=True, slots=True)
class Rig:
    """A scenario, a share of its trials, and where they meet.

    Each hand has a database of its own, for consumers let each other's jobs into the queue.
    """

    scenario: Scenario
    hand: Hand
    provider: Provider
    database_url: str
    trials: Sequence[Trial]

    def play(self) -> None:
        """Place the orders, let the consumers die, and bring what they have left to its end."""
        if self.scenario.crashed:
            self.crash_all_after_their_intent()
        for trial in self.trials:
            end = self.watched(trial)
            assert end.signal == "SIGKILL", f"{trial.point} was not reached: {end}"
            trial.passed = end.points
        self.recover()

    def consume(self, *topics: str, **order: Any) -> End:
        """Run a consumer of these topics."""
        memory = {} if self.provider.keeps_keys else WITHOUT_KEYS
        settings = {
            **SETTINGS,
            **memory,
            **dict(self.scenario.settings),
            "OUTBOX_DATABASE_URL": self.database_url,
            "EMAIL_API_URL": self.provider.url,
            "FAULTS_TOPICS": ",".join(topics),
        }
        return self.hand.run(settings, **order)

    def watched(self, trial: Trial) -> End:
        """Run a consumer of one trial's topic, which dies at its point."""
        crashed = self.scenario.crashed
        return self.consume(
            trial.topic,
            act_at=trial.point,
            ready=0 if crashed else self.scenario.jobs,
            crashed=self.scenario.jobs if crashed else 0,
            paced=self.scenario.paced,
        )

    def place_orders(self) -> None:
        """Leave each trial's jobs."""
        with psycopg.connect(self.database_url) as connection:
            for trial in self.trials:
                for _ in range(self.scenario.jobs):
                    mail = payload(self.scenario.email)
                    Outbox().enqueue(connection, trial.topic, mail, effect_key=trial.key)

    def crash_all_after_their_intent(self) -> None:
        """For the scenario that begins with a crash: it happens, and the leases run out."""
        for trial in self.trials:
            assert self.consume(trial.topic, act_at=INTENT).signal == "SIGKILL"
        self.wait_for_leases()

    def wait_for_leases(self) -> None:
        """Let all leases run out."""
        query = "SELECT coalesce(max(lease_until) < clock_timestamp(), true) FROM outbox.job"
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            eventually(lambda: connection.execute(query).fetchone() == (True,))

    def recover(self) -> None:
        """Let consumers live that serve what the dead have left."""
        self.wait_for_leases()
        size = self.scenario.recovered_together
        for start in range(0, len(self.trials), size):
            topics = [trial.topic for trial in self.trials[start : start + size]]
            assert self.consume(*topics).code == 0

    def states(self) -> Mapping[str, set[str]]:
        """What the product says of each key's jobs."""
        states: dict[str, set[str]] = {}
        with psycopg.connect(self.database_url) as connection:
            for key, state in connection.execute("SELECT effect_key, state FROM outbox.job_status"):
                states.setdefault(key, set()).add(state)
        return states


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_whoever_dies_wherever_no_order_is_lost_and_none_confirmed_twice(
    scenario: Scenario, hands: Crew, each_provider: Provider, databases: Databases
) -> None:
    """A death at each step of this way, then a consumer that lives, then the count."""
    points = _points(scenario, scenario.steps_of(keeps_keys=each_provider.keeps_keys))
    deaths = [Trial(_name(scenario, each_provider, n), point) for n, point in enumerate(points)]
    _plan_faults(scenario, each_provider, deaths)
    with _rigs(scenario, hands, each_provider, databases, deaths) as rigs:
        hands.each(Rig.play, rigs)
        for rig in rigs:
            _judge(rig)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_map_names_every_step_that_there_is(
    scenario: Scenario, hands: Crew, each_provider: Provider, databases: Databases
) -> None:
    """Somebody lives through all of it and writes down each step: the map has them all."""
    steps = scenario.steps_of(keeps_keys=each_provider.keeps_keys)
    alive = [Trial(_name(scenario, each_provider, 1_000), None)]
    _plan_faults(scenario, each_provider, alive)
    with _rigs(scenario, hands, each_provider, databases, alive) as (rig, *_):
        if scenario.crashed:
            rig.crash_all_after_their_intent()
        end = rig.watched(alive[0])
        assert end.code == 0
        assert sorted(end.points) == sorted(_all_points(steps))


def _plan_faults(scenario: Scenario, provider: Provider, trials: Sequence[Trial]) -> None:
    fault = scenario.fault_of(keeps_keys=provider.keeps_keys)
    faults = [{"key": trial.key, "fault": fault} for trial in trials] if fault else []
    provider.plan(faults, late_seconds=LATE_SECONDS)


@contextmanager
def _rigs(
    scenario: Scenario,
    hands: Crew,
    provider: Provider,
    databases: Databases,
    trials: Sequence[Trial],
) -> Iterator[list[Rig]]:
    """Share the trials out among the hands, and place their orders."""
    shares = [trials[number :: len(hands)] for number in range(len(hands))]
    rigs = [
        Rig(scenario, hand, provider, databases.create_migrated(), share)
        for hand, share in zip(hands, shares, strict=True)
    ]
    for rig in rigs:
        rig.place_orders()
    yield rigs
    for rig in rigs:
        databases.drop(rig.database_url)


def _judge(rig: Rig) -> None:
    states = rig.states()
    ends = {trial.point: states[trial.key] for trial in rig.trials}
    assert ends == {trial.point: {_expected_end(rig, trial)} for trial in rig.trials}
    deaths = 2 if rig.scenario.crashed else 1
    orders = [
        Order(trial.key, deaths, next(iter(states[trial.key] - {"done"}), None))
        for trial in rig.trials
    ]
    problems = judge(rig.provider.record, orders, of_these_alone=True)
    assert {trial.point: problems[trial.key] for trial in rig.trials if trial.key in problems} == {}


def _expected_end(rig: Rig, trial: Trial) -> str:
    if rig.provider.keeps_keys:
        return rig.scenario.ends_as
    unknown = rig.scenario.crashed or trial.died_between_intent_and_answer
    return "held" if unknown else rig.scenario.ends_as


def _points(scenario: Scenario, steps: Sequence[str]) -> list[str]:
    """Where to die: the start of a consumer is the same on every way, and is tried on one."""
    everywhere = [step for step in steps if step not in START or scenario is SCENARIOS[0]]
    return _all_points(scenario.kills_at or everywhere)


def _all_points(steps: Sequence[str]) -> list[str]:
    """Before and after each step; of a promotion only its answer says whose it was."""
    moments = {PROMOTION: ["after"]}
    return [f"{step}:{when}" for step in steps for when in moments.get(step, ["before", "after"])]


def _name(scenario: Scenario, provider: Provider, number: int) -> str:
    kind = "keys" if provider.keeps_keys else "none"
    return f"{scenario.name.replace(' ', '-')}-{kind}-{number}"
