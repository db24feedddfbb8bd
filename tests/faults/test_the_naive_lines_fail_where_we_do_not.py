"""The same deaths, the same worlds, the same judge: for twelve naive lines, and for the product.

Against a provider that replays keys for ever, the naive lines are as good as anything; that a test
passes there proves little. The other worlds are where the difference is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import psycopg
import pytest

from outbox import Outbox
from tests.faults.judge import Order, Problem, judge
from tests.faults.orders import payload
from tests.faults.scenarios import SETTINGS, WITHOUT_KEYS
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.faults.crew import Crew, End, Hand
    from tests.faults.provider import Provider

DAY_AND_AN_HOUR = 25 * 3_600.0


@dataclass(slots=True)
class Subject:
    """Whoever is to send the orders' e-mails.

    Two points of its way have names: before its call, and after the answer.
    """

    hand: Hand
    database_url: str
    provider: Provider
    before_the_call: ClassVar[str]
    after_the_answer: ClassVar[str]

    def place(self, number: int) -> None:
        """One more order."""
        raise NotImplementedError

    def send(self, act: str = "", act_at: str = "", **settings: str) -> End:
        """Let a process of it send what is unsent."""
        raise NotImplementedError

    def told(self) -> Mapping[str, str]:
        """What it says of orders without an e-mail."""
        return {}

    def wait_a_day(self) -> None:
        """Let the provider's memory of the keys pass."""
        self.provider.advance_clock(DAY_AND_AN_HOUR)


class Naive(Subject):
    """Twelve lines."""

    before_the_call = "call:before"
    after_the_answer = "call:after"

    def place(self, number: int) -> None:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS orders (id int, email text, sent bool DEFAULT false)"
            )
            connection.execute("INSERT INTO orders VALUES (%s, 'jane@example.com')", [number])

    def send(self, act: str = "", act_at: str = "", **settings: str) -> End:
        places = {"OUTBOX_DATABASE_URL": self.database_url, "EMAIL_API_URL": self.provider.url}
        return self.hand.run({**places, **settings}, act=act, act_at=act_at, subject="naive")


class Product(Subject):
    """The shipped consumer."""

    before_the_call = "connect#1:before"
    after_the_answer = "settle_attempts#1:before"

    def place(self, number: int) -> None:
        with psycopg.connect(self.database_url) as connection:
            key, mail = f"email-order-{number}", payload(order_id=number)
            Outbox().enqueue(connection, "email.x", mail, effect_key=key)

    def send(self, act: str = "", act_at: str = "", **settings: str) -> End:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            query = "SELECT coalesce(max(lease_until) < clock_timestamp(), true) FROM outbox.job"
            eventually(lambda: connection.execute(query).fetchone() == (True,))
        memory = {} if self.provider.keeps_keys else WITHOUT_KEYS
        places = {"OUTBOX_DATABASE_URL": self.database_url, "EMAIL_API_URL": self.provider.url}
        given = {**SETTINGS, **memory, **places, "FAULTS_TOPICS": "email.x", **settings}
        return self.hand.run(given, act=act, act_at=act_at)

    def told(self) -> Mapping[str, str]:
        with psycopg.connect(self.database_url) as connection:
            query = "SELECT effect_key, state FROM outbox.job_status WHERE state <> 'done'"
            return dict(connection.execute(query).fetchall())

    def wait_a_day(self) -> None:
        """The provider's clock can be moved; that of the database can't, so its rows are aged."""
        super().wait_a_day()
        with psycopg.connect(self.database_url) as connection:
            connection.execute(
                "UPDATE outbox.effect SET open_since = open_since - %(s)s * interval '1 second',"
                " last_attempt_at = last_attempt_at - %(s)s * interval '1 second'",
                {"s": DAY_AND_AN_HOUR},
            )


World = Callable[[Subject], Mapping[str, int]]


def killed_after_the_answer(subject: Subject) -> Mapping[str, int]:
    """Accepted, answered, and dead before anything was written down."""
    subject.place(1)
    assert subject.send("SIGKILL", subject.after_the_answer).signal == "SIGKILL"
    subject.send()
    return {"email-order-1": 1}


def killed_and_found_a_day_later(subject: Subject) -> Mapping[str, int]:
    """The same, and nobody looks until the provider has forgotten the key."""
    subject.place(1)
    assert subject.send("SIGKILL", subject.after_the_answer).signal == "SIGKILL"
    subject.wait_a_day()
    subject.send()
    return {"email-order-1": 1}


def killed_and_deployed_anew(subject: Subject) -> Mapping[str, int]:
    """The same, and the template has changed when the next process starts; one more order comes."""
    subject.place(1)
    assert subject.send("SIGKILL", subject.after_the_answer).signal == "SIGKILL"
    subject.place(2)
    subject.send(FAULTS_TEMPLATE_DRIFT=" (new)")
    return {"email-order-1": 1, "email-order-2": 0}


def two_at_once(subject: Subject) -> Mapping[str, int]:
    """Nobody dies: a second process starts while the first one stands still before its call."""
    subject.place(1)
    stopped = subject.send("SIGSTOP", subject.before_the_call)
    assert stopped.stopped is not None
    subject.send()
    subject.hand.resume(stopped.stopped)
    return {"email-order-1": 0}


#: What the judge finds in the naive lines, by world and kind of provider.
FINDINGS: Mapping[tuple[World, bool], set[Problem]] = {
    (killed_after_the_answer, True): set(),
    (killed_after_the_answer, False): {Problem.DUPLICATE},
    (killed_and_found_a_day_later, True): {Problem.DUPLICATE},
    (killed_and_deployed_anew, True): {Problem.DRIFT, Problem.LOST},
    (killed_and_deployed_anew, False): {Problem.DRIFT, Problem.DUPLICATE},
    (two_at_once, True): {Problem.SURPLUS},
    (two_at_once, False): {Problem.DUPLICATE, Problem.SURPLUS},
}
WORLDS = pytest.mark.parametrize(
    ("world", "keeps_keys"),
    FINDINGS.keys(),
    ids=[f"{world.__name__}, {'keys' if keys else 'no keys'}" for world, keys in FINDINGS],
)


@WORLDS
def test_the_judge_finds_what_is_wrong_with_the_naive_lines(
    world: World, keeps_keys: bool, hands: Crew, database_url: str, request: pytest.FixtureRequest
) -> None:
    """Twice, lost, or other bytes: each world shows what twelve lines can't know."""
    provider = request.getfixturevalue("replaying" if keeps_keys else "forgetful")
    subject = Naive(hands[0], database_url, provider)
    assert _problems(subject, world) == FINDINGS[world, keeps_keys]


@WORLDS
def test_the_judge_finds_nothing_wrong_with_the_product(
    world: World, keeps_keys: bool, hands: Crew, database_url: str, request: pytest.FixtureRequest
) -> None:
    """The same deaths in the same worlds."""
    provider = request.getfixturevalue("replaying" if keeps_keys else "forgetful")
    subject = Product(hands[0], database_url, provider)
    assert _problems(subject, world) == set()


def _problems(subject: Subject, world: World) -> set[Problem]:
    kills = world(subject)
    told = subject.told()
    orders = [Order(key, number, told.get(key)) for key, number in kills.items()]
    return set().union(*judge(subject.provider.record, orders).values())
