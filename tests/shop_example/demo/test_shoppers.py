"""The demo's shoppers: as many orders as asked for, and some that are taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session, sessionmaker

from outbox import Outbox
from shop_example.demo.shoppers import Ending, Visit, go_shopping, plan, shares
from shop_example.tables import Order

if TYPE_CHECKING:
    from sqlalchemy import Engine

#: Orders without a job, and jobs without an order.
WIDOWED = """
    SELECT count(*) FROM shop.orders
    FULL JOIN outbox.job ON job.effect_key = 'email-order-' || orders.id
    WHERE orders.id IS NULL OR job.id IS NULL
"""


@pytest.mark.parametrize("orders", [1, 50, 400])
def test_a_plan_commits_as_many_orders_as_asked_for(orders: int) -> None:
    """Those that are rolled back come on top."""
    visits = plan(orders, seed=1)
    assert sum(visit.commits for visit in visits) == orders


def test_a_plan_has_visits_of_every_ending() -> None:
    """Rolled back in each way that there is."""
    assert {visit.ending for visit in plan(400, seed=1)} == set(Ending)


def test_a_seed_names_a_plan() -> None:
    """The same seed, the same visits; another seed, others."""
    assert plan(50, seed=3) == plan(50, seed=3)
    assert plan(50, seed=3) != plan(50, seed=4)


def test_shares_are_all_of_the_visits_in_their_order() -> None:
    """Nobody is left out, however many shares there are."""
    visits = plan(10, seed=1)
    for count in (1, 3, 14, 100):
        cut = shares(visits, count)
        assert len(cut) == count
        assert [visit for share in cut for visit in share] == visits


@pytest.mark.parametrize(
    ("ending", "committed"),
    [
        (Ending.COMMIT, 1),
        (Ending.ROLLBACK, 0),
        (Ending.ERROR, 0),
        (Ending.OTHER_BASKET, 1),
        (Ending.SAVEPOINT, 0),
    ],
)
def test_a_visit_leaves_what_its_ending_says(
    engine: Engine, session: Session, ending: Ending, committed: int
) -> None:
    """As many orders as jobs, with the same keys."""
    go_shopping(Visit(1, {1: 1}, {2: 1}, ending), sessionmaker(engine), Outbox())
    assert session.scalar(select(func.count()).select_from(Order)) == committed
    assert session.scalar(text(WIDOWED)) == 0
