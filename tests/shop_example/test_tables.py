"""The shop's tables: made once however many ask, and strict by themselves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from shop_example.database import engine_of
from shop_example.tables import CUSTOMERS, PRODUCTS, Customer, Product, create_tables

if TYPE_CHECKING:
    from sqlalchemy import Engine

AN_ORDER = "INSERT INTO shop.orders (customer_id, total, currency) VALUES (1, 10, 'EUR')"
A_LINE = (
    "INSERT INTO shop.order_lines (order_id, number, product_id, quantity, unit_price, total) "
    "VALUES (1, 1, 1, {quantity}, {unit_price}, {total})"
)


def count(session: Session, table: type[Customer | Product]) -> int:
    """How many rows a table has."""
    return session.scalar(select(func.count()).select_from(table)) or 0


def test_creating_the_tables_again_changes_nothing(engine: Engine, session: Session) -> None:
    """A command that starts when the tables are there finds them as they are."""
    create_tables(engine)
    assert count(session, Customer) == len(CUSTOMERS)
    assert count(session, Product) == len(PRODUCTS)


def test_commands_that_start_at_once_create_the_tables_once(database_url: str) -> None:
    """Nobody fails, and the samples are there once."""
    engines = [engine_of(database_url) for _ in range(4)]
    with ThreadPoolExecutor(len(engines)) as threads:
        list(threads.map(create_tables, engines))
    with Session(engines[0]) as session:
        assert count(session, Customer) == len(CUSTOMERS)
        assert count(session, Product) == len(PRODUCTS)
    for engine in engines:
        engine.dispose()


def test_rows_of_ones_own_are_kept(engine: Engine, session: Session) -> None:
    """Samples are for empty tables only."""
    session.execute(text("DELETE FROM shop.customers WHERE id > 1"))
    session.commit()
    create_tables(engine)
    assert count(session, Customer) == 1


def test_sample_addresses_belong_to_nobody() -> None:
    """All are at the domains that are reserved for examples."""
    assert all(
        str(customer["email"]).endswith(("@example.com", "@example.org")) for customer in CUSTOMERS
    )


@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("UPDATE shop.products SET stock = -1", "products_stock_check"),
        ("UPDATE shop.products SET price = -1", "products_price_check"),
        ("UPDATE shop.products SET currency = 'euro'", "products_currency_check"),
        ("UPDATE shop.orders SET total = -1", "orders_total_check"),
        (A_LINE.format(quantity=0, unit_price=1, total=0), "order_lines_quantity_check"),
        (A_LINE.format(quantity=3, unit_price="0.10", total="0.31"), "total_is_exact"),
        ("UPDATE shop.orders SET customer_id = 999", "orders_customer_id_fkey"),
    ],
)
def test_the_database_refuses_what_can_not_be(
    session: Session, statement: str, constraint: str
) -> None:
    """Whoever writes past this code meets the same rules."""
    session.execute(text(AN_ORDER))
    with pytest.raises(IntegrityError, match=constraint):
        session.execute(text(statement))
