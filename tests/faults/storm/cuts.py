"""Connections that fail on the way: to PostgreSQL, to the provider, or from the shop.

``lost_answers``: what was asked is committed, and whoever asked never hears of it. ``cuts``: a
reset, half of the bytes and then a reset, silence, or a delay, of a request or of its answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from random import Random

from outbox import statements
from tests.faults.proxy import (
    Decide,
    Exchange,
    Fault,
    Proxy,
    Side,
    Struck,
    Way,
    http_proxy,
    postgres_proxy,
    through,
)
from tests.faults.storm.history import History
from tests.faults.storm.moments import JOB_STATEMENTS, OTHER_STATEMENTS
from tests.faults.storm.shutdowns import living
from tests.waiting import eventually

CONSUMERS = 2
READY = 12
SHOP = "shop"
#: How long a consumer waits for a statement's answer here (30 s in earnest).
STATEMENT_SECONDS = 0.8
#: How long it takes psycopg at most, after that, to give the statement up (it tries to cancel it).
CANCEL_SECONDS = 10.0
#: Until a consumer has connected again, and repeated what it was at.
REPEAT_SECONDS = 0.3
SETTINGS = {"OUTBOX_LEASE_SECONDS": "2.0", "OUTBOX_HEARTBEAT_SECONDS": "0.3"}

#: The share of answers that are lost, by statement. A claim that is lost waits for its lease.
LOST = {
    "COMMIT": 0.15,
    "claim_jobs": 0.1,
    "claim_crashed_job": 0.2,
    "begin_effects": 0.2,
    "reopen_effects": 0.4,
    "settle_attempts": 0.2,
    "extend_leases": 0.05,
}
#: The share of exchanges that are cut, with PostgreSQL and with the provider.
CUT_DATABASE, CUT_PROVIDER = 0.03, 0.25
#: What becomes of them. Of a silence the consumer learns only when its patience ends.
DATABASE_WAYS = {Way.RESET: 9, Way.HALF: 9, Way.DELAY: 4, Way.SILENCE: 1}
PROVIDER_WAYS = {Way.RESET: 3, Way.HALF: 3, Way.DELAY: 1, Way.SILENCE: 1}
#: Shorter and longer than the patience of whoever waits.
DELAYS_SECONDS = (0.1, 0.3, 1.2)


def lost_answers(history: History, faults: int) -> None:
    """So many statements are committed without their client's knowing, the shop's COMMIT too."""

    def decide(exchange: Exchange, dice: Random) -> Fault | None:
        share = LOST.get(statement_of(exchange), 0.0)
        return Fault(Side.ANSWER, Way.RESET) if dice.random() < share else None

    database = database_proxy(history, decide)
    with _working(history, database):
        eventually(lambda: _lost(database) >= faults, _patience_seconds(faults))
    history.faults = _lost(database)
    for struck in database.struck:
        if _counts(struck):
            history.count(statement_of(struck.exchange))


def _lost(database: Proxy) -> int:
    return sum(map(_counts, list(database.struck)))


def _counts(struck: Struck) -> bool:
    """A claim that found nothing has lost nothing."""
    return struck.rows > 0 or statement_of(struck.exchange) == "COMMIT"


def cuts(history: History, faults: int) -> None:
    """So many connections are cut, go silent, or are slow, with PostgreSQL or with the provider."""
    database = database_proxy(history, cutting(CUT_DATABASE, DATABASE_WAYS))
    chance = diced(history, cutting(CUT_PROVIDER, PROVIDER_WAYS))
    provider = history.until_drained(http_proxy(history.provider.url, chance))
    # One door for all, and to the end: where it is called is the name of the account.
    history.provider = replace(history.provider, url=f"http://127.0.0.1:{provider.open()}")
    with _working(history, database):
        eventually(
            lambda: len(database.struck) + len(provider.struck) >= faults,
            _patience_seconds(faults),
        )
        provider.decide = at_peace
    for side, proxy in (("database", database), ("provider", provider)):
        for struck in proxy.struck:
            history.count(f"{side}, {struck.fault.side.value}: {struck.fault.way.value}")
    history.faults = len(database.struck) + len(provider.struck)


def statement_of(exchange: Exchange) -> str:
    """The name of the library's statement, or the first word of any other."""
    text = exchange.text
    if (name := _NAMES.get(re.sub(r"\$\d+", "?", text))) is not None:
        return name
    return text.split(None, 1)[0] if text else "start"


#: By the text as it is on the wire, but for the numbers of its parameters.
_NAMES = {
    re.sub(r"%\(\w+\)b", "?", statements.psycopg(name)).replace("%%", "%"): name
    for name in (*JOB_STATEMENTS, *OTHER_STATEMENTS)
}

Chance = Callable[[Exchange, Random], Fault | None]


def cutting(share: float, ways: Mapping[Way, int]) -> Chance:
    """Chances that so large a share of all exchanges is cut in one of these ways."""

    def decide(exchange: Exchange, dice: Random) -> Fault | None:
        if dice.random() >= share:
            return None
        (way,) = dice.choices(list(ways), list(ways.values()))
        if exchange.door == SHOP and way is Way.SILENCE:
            return None  # a shop waits as long as its client's settings let it; ours for ever
        side = dice.choice((Side.REQUEST, Side.ANSWER))
        bytes_first = dice.choice((0, 0, 1, 5, 40)) if way is Way.RESET else 0
        return Fault(side, way, bytes_first, dice.choice(DELAYS_SECONDS))

    return decide


def diced(history: History, chance: Chance) -> Decide:
    """Dice of their own for each n-th exchange of its kind at a door, whatever comes in between."""
    turns: Counter[tuple[str, str]] = Counter()

    def decide(exchange: Exchange) -> Fault | None:
        place = (exchange.door, statement_of(exchange))
        turns[place] += 1
        return chance(exchange, Random(f"{history.chapter} {place} {turns[place]}"))

    return decide


def _patience_seconds(faults: int) -> float:
    """On a machine that is very busy."""
    return 60.0 + 2.0 * faults


def at_peace(_: Exchange) -> None:
    """Everything passes."""


def database_proxy(history: History, chance: Chance) -> Proxy:
    """A proxy in front of this history's PostgreSQL, with these chances."""
    return history.until_drained(postgres_proxy(history.database_url, diced(history, chance)))


@contextmanager
def _working(history: History, database: Proxy) -> Iterator[None]:
    """A shop and consumers at work behind doors of their own; in the end these let all pass."""
    doors = [f"consumer {number}" for number in range(CONSUMERS)]
    urls = [through(history.database_url, database.open(door)) for door in doors]
    settings = [history.settings(OUTBOX_DATABASE_URL=url, **SETTINGS) for url in urls]
    history.shop.database_url = through(history.database_url, database.open(SHOP))
    patience = {"outbox.connection.STATEMENT_SECONDS_MAX": STATEMENT_SECONDS}
    with living(history, settings, overrides=patience) as lives:
        with history.shop.busy(READY):
            yield
        database.decide = at_peace
    history.shop.close()
    numbers = {door: life.number for door, life in zip(doors, lives, strict=True)}
    for struck in database.struck:
        number = numbers.get(struck.exchange.door)
        if number is not None:
            history.blow(struck.at, struck.at + _over_it_seconds(struck.fault), number=number)


def _over_it_seconds(fault: Fault) -> float:
    match fault.way:
        case Way.DELAY:
            return fault.seconds + REPEAT_SECONDS
        case Way.SILENCE:
            return STATEMENT_SECONDS + CANCEL_SECONDS + REPEAT_SECONDS
        case _:
            return REPEAT_SECONDS
