"""Kill the shipped consumer at every step of an e-mail's way, and count at the provider.

The steps are found by a run in which nobody dies, and are asserted as a list: a new statement makes
the list longer, and this test red until somebody has looked. A killed consumer is followed by one
that lives. Then, with a provider that replays keys: one accepted e-mail for each order. With one
that keeps none, and ``hold``: never two, and each order without an accepted e-mail is held; held
where the intent was committed and the answer was not, and nowhere else. What is expected of each
death (``Scenario.fate``) is what docs/kill-map.md prints.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from outbox import Outbox
from tests.faults import oracle
from tests.faults.judge import Order, judge, tallies
from tests.faults.oracle import Verdict
from tests.faults.orders import payload
from tests.faults.scenarios import PATIENT, WAYS, WITHOUT_KEYS, Fate, Scenario
from tests.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.databases import Databases
    from tests.faults.crew import Crew, End, Hand
    from tests.faults.provider import Provider

LATE_SECONDS = 0.6
#: After this point a consumer has committed that it will call.
INTENT = "begin_effects#1:after"
#: Before it, a consumer has the acceptance in its hand.
SETTLE = "settle_attempts#1"
#: What the independent oracle has to say of an order that ends so.
VERDICTS = {"done": Verdict.DELIVERED_ONCE, "held": Verdict.HELD, "dead": Verdict.ENDED}
EACH_WAY = pytest.mark.parametrize(
    ("scenario", "each_provider"),
    [(scenario, "keys" if keeps_keys else "no keys") for scenario, keeps_keys in WAYS],
    indirect=["each_provider"],
    ids=[f"{scenario.name}, {'' if keeps_keys else 'no '}keys" for scenario, keeps_keys in WAYS],
)
#: Orders have different numbers in all of a session's databases, for they share a provider.
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Trial:
    """An order (or two), and the point at which its consumer dies (``None``: nowhere)."""

    orders: Sequence[int]
    point: str | None

    @property
    def topic(self) -> str:
        """Each trial has a topic of its own, so that nobody else's consumer touches its job."""
        return f"email.{self.orders[0]}"


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
        for trial, end in zip(self.trials, self.watch(), strict=True):
            assert end.signal == "SIGKILL", f"{trial.point} was not reached: {end}"
        self.recover()

    def watch(self) -> list[End]:
        """Place the orders, and let each trial's consumer go to its end."""
        if self.scenario.jobs == 1:
            for trial in self.trials:
                self.place(trial)
        if self.scenario.crashed:
            self.crash_all_after_their_intent()
        late = self.hold_all() if self.scenario.late else []
        ends = []
        for number, trial in enumerate(self.trials):
            if late:
                # No sooner: every consumer lets all jobs that are no longer held into the queue.
                assert self.hand.resume(late[number]).signal == "SIGKILL"
            ends.append(self.watched(trial))
        return ends

    def consume(self, *topics: str, poll_seconds: float | None = None, **order: Any) -> End:
        """Run a consumer of these topics."""
        memory = {} if self.provider.keeps_keys else WITHOUT_KEYS
        settings = {
            **PATIENT,
            **memory,
            "OUTBOX_DATABASE_URL": self.database_url,
            "EMAIL_API_URL": self.provider.url,
            "FAULTS_TOPICS": ",".join(topics),
        }
        if poll_seconds is not None:
            settings["OUTBOX_POLL_SECONDS"] = str(poll_seconds)
        return self.hand.run(settings, loop=self.scenario.loop, **order)

    def watched(self, trial: Trial) -> End:
        """Run a consumer of one trial's topic, which dies at its point."""
        way = self.scenario
        if way.jobs > 1:
            # No sooner: every consumer lets every ordering key's next job into the queue.
            self.place(trial)
        return self.consume(
            trial.topic,
            act_at=trial.point,
            ready=0 if way.crashed or way.late or way.jobs > 1 else 1,
            crashed=int(way.crashed),
            paced=way.paced,
            stop_at=way.stop_at,
        )

    def place(self, trial: Trial) -> None:
        """Leave a trial's jobs."""
        key = trial.topic if self.scenario.jobs > 1 else None
        with psycopg.connect(self.database_url) as connection:
            for number in range(self.scenario.jobs):
                order = trial.orders[number % self.scenario.effects]
                mail, effect = payload(self.scenario.email, order), oracle.KEY.format(order)
                Outbox().enqueue(connection, trial.topic, mail, effect_key=effect, ordering_key=key)

    def crash_all_after_their_intent(self) -> None:
        """For the scenario that begins with a crash: it happens, and the leases run out."""
        for trial in self.trials:
            assert self.consume(trial.topic, act_at=INTENT).signal == "SIGKILL"
        self.end_leases()

    def hold_all(self) -> list[int]:
        """Stop consumers that have an acceptance, and let somebody hold their jobs; who is stopped.

        Once they go on, they settle and die; without another look at the queue, which would let in
        what the next one is to let in.
        """
        acts: dict[str, Any] = {
            "act": "SIGSTOP", "act_at": f"{SETTLE}:before", "then": {f"{SETTLE}:after": "SIGKILL"}
        }  # fmt: skip
        stopped = [
            self.consume(trial.topic, poll_seconds=3600, **acts).stopped or 0
            for trial in self.trials
        ]
        assert all(stopped), "one was not stopped"
        self.recover(of_the_living=True)
        return stopped

    def end_leases(self, *, of_the_living: bool = False) -> None:
        """Let the statements of the dead end; then all leases have run out, says the database."""
        query = (
            "SELECT count(*) = 0 FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            if not of_the_living:
                eventually(lambda: connection.execute(query).fetchone() == (True,))
            connection.execute(
                "UPDATE outbox.job SET lease_until = now() WHERE lease_until IS NOT NULL"
            )

    def recover(self, *, of_the_living: bool = False) -> None:
        """Let consumers live that serve what the dead have left."""
        self.end_leases(of_the_living=of_the_living)
        size = self.scenario.recovered_together
        for start in range(0, len(self.trials), size):
            topics = [trial.topic for trial in self.trials[start : start + size]]
            assert self.consume(*topics).code == 0

    def told(self, output: Path) -> list[str]:
        """What the command line says of all jobs and effects, as JSON lines."""
        lines: list[str] = []
        for question in (["jobs", "--state", "all"], ["effects", "list"]):
            settings = {"OUTBOX_DATABASE_URL": self.database_url}
            arguments = [*question, "--json"]
            end = self.hand.run(settings, subject="outbox", arguments=arguments, output=output)
            assert end.code == 0
            lines += output.read_text().splitlines()
        return lines


@EACH_WAY
def test_whoever_dies_wherever_no_order_is_lost_and_none_confirmed_twice(
    scenario: Scenario,
    hands: Crew,
    each_provider: Provider,
    databases: Databases,
    tmp_path: Path,
) -> None:
    """A death at each step of this way, then a consumer that lives, then the count."""
    points = scenario.deaths(keeps_keys=each_provider.keeps_keys)
    with _rigs(scenario, hands, each_provider, databases, points) as rigs:
        hands.each(Rig.play, rigs)
        for rig in rigs:
            _judge(rig, rig.told(tmp_path / "told"))


@EACH_WAY
def test_the_map_names_every_step_that_there_is(
    scenario: Scenario, hands: Crew, each_provider: Provider, databases: Databases
) -> None:
    """Somebody lives through all of it and writes down each step: the map has them all."""
    with _rigs(scenario, hands, each_provider, databases, [None]) as (rig, *_):
        (end,) = rig.watch()
        assert end.code == 0
        expected = scenario.points(keeps_keys=each_provider.keeps_keys)
        assert sorted(end.points) == sorted(expected)


@contextmanager
def _rigs(
    scenario: Scenario,
    hands: Crew,
    provider: Provider,
    databases: Databases,
    points: Sequence[str | None],
) -> Iterator[list[Rig]]:
    """Share the deaths out among the hands, and say what the first requests are to meet."""
    trials = [Trial([next(_numbers) for _ in range(scenario.effects)], point) for point in points]
    fault = scenario.fault_of(keeps_keys=provider.keeps_keys)
    keys = [oracle.KEY.format(number) for trial in trials for number in trial.orders]
    provider.plan(
        [{"key": key, "fault": fault} for key in keys] if fault else [],
        late_seconds=LATE_SECONDS,
    )
    shares = [trials[number :: len(hands)] for number in range(len(hands))]
    rigs = [
        Rig(scenario, hand, provider, databases.create_migrated(), share)
        for hand, share in zip(hands, shares, strict=True)
    ]
    yield rigs
    for rig in rigs:
        databases.drop(rig.database_url)


def _judge(rig: Rig, told: Sequence[str]) -> None:
    """By what the product says, by our own judge, and by the oracle that knows no code of ours."""
    states = _states(told)
    accepted = {key: seen.accepted for key, seen in tallies(rig.provider.record).items()}
    fates = {}
    for trial in rig.trials:
        keys = [oracle.KEY.format(number) for number in trial.orders]
        sent = sum(accepted.get(key, 0) for key in keys)
        fates[trial.point] = Fate(tuple(states[key] for key in keys), sent)
    keeps_keys = rig.provider.keeps_keys
    assert fates == {
        trial.point: rig.scenario.fate(trial.point, keeps_keys=keeps_keys) for trial in rig.trials
    }
    deaths = {number: _deaths(rig.scenario) for trial in rig.trials for number in trial.orders}
    _judge_by_our_own(rig, states, deaths)
    _judge_by_the_oracle(rig, states, deaths, told)


def _judge_by_our_own(rig: Rig, states: Mapping[str, str], deaths: Mapping[int, int]) -> None:
    keys = {number: oracle.KEY.format(number) for number in deaths}
    orders = [
        Order(key, deaths[number], None if states[key] == "done" else states[key])
        for number, key in keys.items()
    ]
    assert judge(rig.provider.record, orders, of_these_alone=True) == {}


def _judge_by_the_oracle(
    rig: Rig, states: Mapping[str, str], deaths: Mapping[int, int], told: Sequence[str]
) -> None:
    verdicts = oracle.judge(deaths, rig.provider.record, told, drained=True, faults=deaths).verdicts
    # Behind a held job of its ordering key one waits visibly, which the oracle takes for unknown.
    expected = {**VERDICTS, "blocked": Verdict.CANT_SAY}
    keys = [oracle.KEY.format(number) for number in deaths]
    assert {key: verdicts[key] for key in keys} == {
        key: frozenset({expected[states[key]]}) for key in keys
    }


def _states(told: Sequence[str]) -> Mapping[str, str]:
    """What the product says of each key's jobs, which all end alike."""
    answers = [json.loads(line) for line in told]
    states = {(line["effect_key"], line["state"]) for line in answers if "enqueued_at" in line}
    assert max(Counter(key for key, _ in states).values(), default=0) <= 1
    return dict(states)


def _deaths(scenario: Scenario) -> int:
    """Of each trial: the watched one, and what was before."""
    return 1 + scenario.crashed + 2 * scenario.late
