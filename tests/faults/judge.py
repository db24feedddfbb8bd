"""The judge of the kill tests: counts at the provider's own record, and trusts nobody else.

The one question that it puts to the product is which orders it says are held or dead, for nobody
outside can know that; whether that was justified is judged here again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from shop_example.mail_service.record import KeyTally, Tally, read_record


class Problem(Enum):
    """What must not be."""

    DUPLICATE = "more than one e-mail accepted"
    LOST = "no e-mail accepted, and nobody is told"
    SURPLUS = "more requests than one, its faults and its kills explain"
    DRIFT = "a repeat with other bytes"
    UNCALLED_FOR = "an e-mail of no order"


@dataclass(frozen=True, slots=True)
class Order:
    """What the judge is told of one committed order.

    ``kills``: how many processes died while they may have been at work on it. ``told``: what its
    owner says became of it where no e-mail was accepted ("held", "dead"), or ``None``.
    """

    key: str
    kills: int = 0
    told: str | None = None


def judge(
    record: Path, orders: Collection[Order], *, of_these_alone: bool = False
) -> dict[str, set[Problem]]:
    """The problems by key; empty when all is as it should be.

    ``of_these_alone``: other tests write to the same record; what is not of these orders is theirs.
    """
    seen = tallies(record)
    found = {order.key: _judge_order(order, seen.get(order.key)) for order in orders}
    for key in () if of_these_alone else seen.keys() - found.keys():
        found[str(key)] = {Problem.UNCALLED_FOR}
    return {key: problems for key, problems in found.items() if problems}


def tallies(record: Path) -> Mapping[str | None, KeyTally]:
    """What the record says of each key."""
    return Tally.of(read_record(record)).by_key


def _judge_order(order: Order, seen: KeyTally | None) -> set[Problem]:
    seen = seen or KeyTally()
    allowed = 1 + order.kills + sum(seen.faults.values())
    wrong = {
        Problem.DUPLICATE: seen.accepted > 1,
        Problem.LOST: seen.accepted == 0 and order.told is None,
        Problem.SURPLUS: seen.requests > allowed,
        Problem.DRIFT: len(seen.body_sha256s) > 1,
    }
    return {problem for problem, is_so in wrong.items() if is_so}
