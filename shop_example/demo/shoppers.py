"""Shoppers: they place orders side by side, and some change their minds when all is written."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from sqlalchemy.orm import Session, sessionmaker

from outbox import Outbox
from shop_example.orders import place_order
from shop_example.tables import CUSTOMERS, PRODUCTS

Basket = Mapping[int, int]


class Ending(enum.Enum):
    """How a visit to the shop ends. The job has been enqueued in every case."""

    COMMIT = "the order is committed"
    ROLLBACK = "it is rolled back"
    ERROR = "an error after it rolls it back"
    OTHER_BASKET = "it is rolled back to a savepoint, and another one is committed"
    SAVEPOINT = "its savepoint is released, and the whole transaction is rolled back"


#: Of all visits but plain ones, each kind is as frequent as the others.
_ROLLED_BACK = (Ending.ROLLBACK, Ending.ERROR, Ending.OTHER_BASKET, Ending.SAVEPOINT)
#: One visit in so many is not a plain one.
_PLAIN_SHARE = 6


class CardDeclined(Exception):
    """What goes wrong in a visit that ends in an error."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One visit: who, what, and how it ends."""

    customer_id: int
    basket: Basket
    other_basket: Basket
    ending: Ending

    @property
    def commits(self) -> bool:
        return self.ending in {Ending.COMMIT, Ending.OTHER_BASKET}

    @property
    def rolls_back(self) -> bool:
        return self.ending is not Ending.COMMIT


def plan(orders: int, seed: int) -> list[Visit]:
    """Visits that commit so many orders, and roll some others back; the same for the same seed."""
    dice, visits, committed = Random(seed), list[Visit](), 0
    while committed < orders:
        visit = _visit(dice)
        visits.append(visit)
        committed += visit.commits
    return visits


def shares(visits: Sequence[Visit], count: int) -> list[Sequence[Visit]]:
    """Cut the visits into so many shares, as equal as can be."""
    edges = [len(visits) * number // count for number in range(count + 1)]
    return [visits[start:end] for start, end in pairwise(edges)]


def go_shopping(visit: Visit, sessions: sessionmaker[Session], outbox: Outbox) -> None:
    """Make one visit, in one transaction."""
    with sessions() as session:
        try:
            _WAYS[visit.ending](visit, session, outbox)
        except CardDeclined:
            session.rollback()


def _commit(visit: Visit, session: Session, outbox: Outbox) -> None:
    place_order(session, outbox, visit.customer_id, visit.basket)
    session.commit()


def _rollback(visit: Visit, session: Session, outbox: Outbox) -> None:
    place_order(session, outbox, visit.customer_id, visit.basket)
    session.rollback()


def _error(visit: Visit, session: Session, outbox: Outbox) -> None:
    place_order(session, outbox, visit.customer_id, visit.basket)
    raise CardDeclined


def _other_basket(visit: Visit, session: Session, outbox: Outbox) -> None:
    savepoint = session.begin_nested()
    place_order(session, outbox, visit.customer_id, visit.basket)
    savepoint.rollback()
    place_order(session, outbox, visit.customer_id, visit.other_basket)
    session.commit()


def _savepoint(visit: Visit, session: Session, outbox: Outbox) -> None:
    with session.begin_nested():
        place_order(session, outbox, visit.customer_id, visit.basket)
    session.rollback()


_WAYS: Mapping[Ending, Callable[[Visit, Session, Outbox], None]] = {
    Ending.COMMIT: _commit,
    Ending.ROLLBACK: _rollback,
    Ending.ERROR: _error,
    Ending.OTHER_BASKET: _other_basket,
    Ending.SAVEPOINT: _savepoint,
}


def _visit(dice: Random) -> Visit:
    plain = dice.randrange(_PLAIN_SHARE) > 0
    return Visit(
        customer_id=dice.randint(1, len(CUSTOMERS)),
        basket=_basket(dice),
        other_basket=_basket(dice),
        ending=Ending.COMMIT if plain else dice.choice(_ROLLED_BACK),
    )


def _basket(dice: Random) -> Basket:
    products = dice.sample(range(1, len(PRODUCTS) + 1), k=dice.randint(1, 3))
    return {product: dice.randint(1, 3) for product in products}
