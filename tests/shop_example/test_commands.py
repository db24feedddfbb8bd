"""The shop's commands, run as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

from shop_example.database import engine_of
from shop_example.tables import create_tables

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    Shop = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def shop(database_url: str) -> Shop:
    """Runs ``python -m shop_example ...`` on the test's database."""

    def run(*arguments: str, url: str = database_url) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shop_example", *arguments],
            env={**os.environ, "OUTBOX_DATABASE_URL": url},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    return run


def placed(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """The JSON lines of a command that did well."""
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_orders_are_placed_and_told_by_their_ids(
    shop: Shop, connection: psycopg.Connection[Any]
) -> None:
    """A JSON line for each, and as many orders and jobs in the database."""
    orders = placed(shop("order", "--count", "3", "--json"))
    stored = connection.execute(
        "SELECT orders.id, job.effect_key, job.id, orders.total::text FROM shop.orders"
        " JOIN outbox.job ON effect_key = 'email-order-' || orders.id ORDER BY 1"
    ).fetchall()
    assert stored == [
        (order["order_id"], order["effect_key"], order["job_id"], order["total"])
        for order in orders
    ]


def test_each_order_is_a_transaction_of_its_own(
    shop: Shop, connection: psycopg.Connection[Any]
) -> None:
    """Seen from the rows: every order has another transaction id."""
    shop("order", "--count", "5")
    row = connection.execute("SELECT count(DISTINCT xmin::text) FROM shop.orders").fetchone()
    assert row == (5,)


def test_without_json_an_order_is_a_line_for_a_person(shop: Shop) -> None:
    """Its id, its total, its job and its effect."""
    done = shop("order")
    assert done.returncode == 0
    (line,) = done.stdout.splitlines()
    assert line.startswith("order 1: ")
    assert line.endswith("EUR, job 1, effect email-order-1")


def test_a_customer_can_be_chosen(shop: Shop, connection: psycopg.Connection[Any]) -> None:
    """All orders are theirs."""
    placed(shop("order", "--count", "3", "--customer", "2", "--json"))
    customers = connection.execute("SELECT DISTINCT customer_id FROM shop.orders").fetchall()
    assert customers == [(2,)]


def refused(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line of a command that could not do it."""
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    return line


def test_an_unknown_customer_is_refused_in_one_line(shop: Shop) -> None:
    """Exit code 1: the answer is no."""
    assert refused(shop("order", "--customer", "99"), 1) == "shop: there is no customer 99"


def test_a_database_without_the_outbox_is_told_how_to_get_it(
    shop: Shop, empty_database_url: str
) -> None:
    """Nothing is created beside the point."""
    assert "run: outbox migrate" in refused(shop("order", url=empty_database_url), 1)
    engine = engine_of(empty_database_url)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT to_regnamespace('shop')")) is None
    engine.dispose()


def test_an_empty_shop_says_so(shop: Shop, database_url: str) -> None:
    """Sold out is an answer, and no traceback."""
    engine = engine_of(database_url)
    create_tables(engine)
    with Session(engine) as session:
        session.execute(text("UPDATE shop.products SET stock = 0"))
        session.commit()
    engine.dispose()
    assert "nothing in stock" in refused(shop("order"), 1)


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("mysql://localhost/shop", 2, "OUTBOX_DATABASE_URL"),
        ("postgresql://nobody:secret@127.0.0.1:1/shop", 1, "can't connect"),
    ],
)
def test_a_database_that_is_none_is_one_line(shop: Shop, url: str, code: int, words: str) -> None:
    """No traceback, and no password."""
    line = refused(shop("order", url=url), code)
    assert words in line
    assert "secret" not in line


@pytest.mark.parametrize(
    "arguments",
    [("order", "--count", "0"), ("order", "--count", "many"), ("order", "-x"), ("serve",), ()],
)
def test_wrong_use_is_exit_code_2(shop: Shop, arguments: tuple[str, ...]) -> None:
    """And says what was wrong."""
    done = shop(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_mail_service_hands_its_options_on(shop: Shop) -> None:
    """The help is the mail-service's own."""
    done = shop("mail-service", "--help")
    assert done.returncode == 0
    assert "--key-window-seconds" in done.stdout


def test_mail_service_refuses_wrong_options_itself(shop: Shop) -> None:
    """With its own words and exit code 2."""
    done = shop("mail-service", "--port", "one")
    assert done.returncode == 2
    assert "mail-service: error" in done.stderr
