"""Placing an order: checked, exact, and one transaction with its e-mail's job."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, func, select, text
from sqlalchemy.orm import Session

from outbox import Outbox
from shop_example.emails import emails
from shop_example.orders import (
    OrderRefused,
    TooLittleStock,
    UnknownCustomer,
    UnknownProduct,
    WrongQuantity,
    WrongTotal,
    confirmation,
    place_order,
)
from shop_example.tables import Order, OrderLine, Product

if TYPE_CHECKING:
    from sqlalchemy import Engine

OUTBOX = Outbox()
TEAPOT, TEACUP, SENCHA = 1, 2, 3


def jobs(session: Session) -> list[Any]:
    """The effect keys of all jobs."""
    return list(session.scalars(text("SELECT effect_key FROM outbox.job ORDER BY id")))


def orders(session: Session) -> int:
    """How many orders there are."""
    return session.scalar(select(func.count()).select_from(Order)) or 0


def stock(session: Session, product_id: int) -> int | None:
    """How much there is of a product, as the database says."""
    return session.scalar(select(Product.stock).where(Product.id == product_id))


def add_product(session: Session, price: str, stock: int = 10, currency: str = "EUR") -> int:
    """A product of the test's own; its id."""
    product = Product(name="Test tea", price=Decimal(price), currency=currency, stock=stock)
    session.add(product)
    session.commit()
    return product.id


def test_an_order_and_its_job_are_committed_together(engine: Engine, session: Session) -> None:
    """Another session sees neither before the commit, and both after it."""
    with Session(engine) as other:
        order = place_order(session, OUTBOX, 1, {TEAPOT: 1})
        assert (orders(other), jobs(other)) == (0, [])
        session.commit()
        assert (orders(other), jobs(other)) == (1, [f"email-order-{order.id}"])


def test_a_rollback_takes_back_order_job_and_stock(session: Session) -> None:
    """Nothing is left of an order that was not committed."""
    before = stock(session, TEAPOT)
    place_order(session, OUTBOX, 1, {TEAPOT: 2})
    session.rollback()
    assert (orders(session), jobs(session), stock(session, TEAPOT)) == (0, [], before)


def test_a_savepoint_takes_back_its_order_alone(session: Session) -> None:
    """What comes after it in the same transaction is committed."""
    savepoint = session.begin_nested()
    place_order(session, OUTBOX, 1, {TEAPOT: 1})
    savepoint.rollback()
    kept = place_order(session, OUTBOX, 1, {TEACUP: 1})
    session.commit()
    assert (orders(session), jobs(session)) == (1, [f"email-order-{kept.id}"])


def test_place_order_never_commits(session: Session) -> None:
    """The transaction is the caller's, from its beginning to its end."""
    commits: list[object] = []
    event.listen(session, "after_commit", commits.append)
    place_order(session, OUTBOX, 1, {TEAPOT: 1})
    assert session.in_transaction()
    assert commits == []


def test_amounts_are_exact(session: Session) -> None:
    """A thousand times 0.10 and three times 0.07 are 100.21, to the cent."""
    dime, seven = add_product(session, "0.10", stock=1000), add_product(session, "0.07")
    order = place_order(session, OUTBOX, 1, {dime: 1000, seven: 3})
    session.commit()
    assert order.total == Decimal("100.21")
    assert session.scalar(select(func.sum(OrderLine.total))) == order.total


def test_stock_is_taken(session: Session) -> None:
    """What is ordered is gone, down to the last piece."""
    product = add_product(session, "1.00", stock=3)
    place_order(session, OUTBOX, 1, {product: 3})
    session.commit()
    assert stock(session, product) == 0


def test_prices_of_the_moment_stay(session: Session) -> None:
    """A later price changes no order."""
    product = add_product(session, "1.00")
    order = place_order(session, OUTBOX, 1, {product: 2})
    session.execute(text("UPDATE shop.products SET price = 5"))
    session.commit()
    session.refresh(order)
    assert [line.unit_price for line in order.lines] == [Decimal("1.00")]


@pytest.mark.parametrize(
    ("customer_id", "quantities", "refusal", "words"),
    [
        (999, {TEAPOT: 1}, UnknownCustomer, "customer 999"),
        (1, {TEAPOT: 1, 888: 1}, UnknownProduct, "product 888"),
        (1, {}, WrongQuantity, "at least one"),
        (1, {TEAPOT: 0}, WrongQuantity, "product 1: 0"),
        (1, {TEAPOT: -1}, WrongQuantity, "product 1: -1"),
        (1, {TEAPOT: 1.5}, WrongQuantity, "product 1: 1.5"),
        (1, {TEAPOT: True}, WrongQuantity, "product 1: True"),
        (1, {TEAPOT: 10_000_000}, TooLittleStock, "10000000 ordered, 1000000 in stock"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_and_leaves_nothing(
    session: Session,
    customer_id: int,
    quantities: dict[int, int],
    refusal: type[OrderRefused],
    words: str,
) -> None:
    """The text names what is wrong; the transaction goes on."""
    with pytest.raises(refusal, match=words):
        place_order(session, OUTBOX, customer_id, quantities)
    place_order(session, OUTBOX, 1, {TEACUP: 1})
    session.commit()
    assert orders(session) == len(jobs(session)) == 1


def test_an_order_in_two_currencies_is_refused(session: Session) -> None:
    """A sum of euros and dollars is no total, and nothing is taken from stock for it."""
    dollars = add_product(session, "1.00", currency="USD")
    with pytest.raises(WrongTotal, match="EUR, USD"):
        place_order(session, OUTBOX, 1, {TEAPOT: 1, dollars: 1})
    session.commit()
    assert stock(session, dollars) == 10


def test_a_total_that_fits_no_column_is_refused(session: Session) -> None:
    """The shop says so, and not the database."""
    product = add_product(session, "9999999999.99")
    with pytest.raises(WrongTotal, match="more than"):
        place_order(session, OUTBOX, 1, {product: 2})


def test_the_last_piece_is_sold_once(engine: Engine, session: Session) -> None:
    """Of four customers at once one gets it, and the others are told."""
    product = add_product(session, "1.00", stock=1)

    def buy(customer_id: int) -> bool:
        with Session(engine) as own:
            try:
                place_order(own, OUTBOX, customer_id, {product: 1})
            except TooLittleStock:
                return False
            own.commit()
            return True

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(buy, range(1, 5))) == [False, False, False, True]
    assert orders(session) == 1


def test_a_session_that_remembers_an_older_stock_does_not_sell_it(
    engine: Engine, session: Session
) -> None:
    """The stock is read again under the lock."""
    product_id = add_product(session, "1.00", stock=2)
    remembered = session.get(Product, product_id)
    assert remembered is not None
    assert remembered.stock == 2
    with Session(engine) as other:
        place_order(other, OUTBOX, 1, {product_id: 2})
        other.commit()
    with pytest.raises(TooLittleStock, match="0 in stock"):
        place_order(session, OUTBOX, 1, {product_id: 1})


def test_products_are_locked_in_the_order_of_their_ids(engine: Engine, session: Session) -> None:
    """Baskets filled in opposite orders never deadlock: the statement sorts."""
    statements = list[str]()
    event.listen(
        engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2])
    )
    place_order(session, OUTBOX, 1, {SENCHA: 1, TEAPOT: 1})
    (locking,) = (sql for sql in statements if "FOR NO KEY UPDATE" in sql)
    assert "ORDER BY shop.products.id" in locking


def test_the_payload_is_what_the_email_reads(session: Session) -> None:
    """What place_order enqueues can be rendered, as it stands in the database."""
    order = place_order(session, OUTBOX, 5, {TEAPOT: 1, SENCHA: 2})
    stored = session.scalar(text("SELECT CAST(payload AS text) FROM outbox.job"))
    message = emails.render("email.order_confirmation", stored or "")
    assert message.to[0].address == "emi@example.com"
    assert "75.50" in (message.text or "")
    assert confirmation(order)["total"] == "75.50"
