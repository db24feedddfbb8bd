"""The shop's commands: ``python -m shop_example order | mail-service | demo``.

Exit codes: 0 fine, 1 the answer is no or the work failed, 2 wrong use or settings.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from random import Random
from typing import Annotated, Any

import typer
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox import ConfigurationError, Outbox, OutboxError, schema
from shop_example.database import database_url, engine_of
from shop_example.demo import DemoFailed
from shop_example.orders import OrderRefused, effect_key, place_order
from shop_example.tables import Customer, Order, Product, create_tables

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="A small shop that shows the pattern: an order, and its e-mail.",
)


def main() -> int:
    """Run one command and return its exit code; an error is one line on stderr."""
    try:
        app(prog_name="python -m shop_example")
    except ConfigurationError as error:
        return _complain(str(error), 2)
    except (OutboxError, OrderRefused, DemoFailed) as error:
        return _complain(str(error), 1)
    except DBAPIError as error:
        return _complain(f"the database says: {str(error.orig).strip().splitlines()[0]}", 1)
    return 0


@app.command()
def order(
    count: Annotated[int, typer.Option(min=1, help="How many orders.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON line per order.")] = False,
    customer: Annotated[
        int | None, typer.Option(min=1, help="Whose orders, by id; unset: everyone's in turn.")
    ] = None,
) -> None:
    """Place orders of random products, each in its own transaction, and print their ids."""
    url = database_url()
    schema.check_url(url)
    engine = engine_of(url)
    create_tables(engine)
    # What is printed was loaded before the commit.
    with Session(engine, expire_on_commit=False) as session:
        for placed in itertools.islice(_orders(session, customer), count):
            sys.stdout.write(_line(placed, as_json=as_json) + "\n")


@app.command(
    "mail-service",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def mail_service(context: typer.Context) -> None:
    """Run a local e-mail provider that records everything and misbehaves when told to."""
    from shop_example.mail_service import main as run

    raise typer.Exit(run(context.args))


@app.command()
def demo(
    orders: Annotated[
        int, typer.Option(min=1, max=100_000, help="How many orders are committed, per provider.")
    ] = 400,
    kills: Annotated[
        int, typer.Option(min=0, max=1000, help="How often a consumer is killed, per provider.")
    ] = 10,
    seed: Annotated[int, typer.Option(help="Of all dice: baskets, faults, moments of kills.")] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON line per provider, and nothing else.")
    ] = False,
) -> None:
    """Orders by the hundred, consumers killed at random, a provider that misbehaves; then count."""
    from shop_example.demo.scenario import Wish, run

    raise typer.Exit(run(Wish(orders=orders, kills=kills, seed=seed, as_json=as_json)))


def _orders(session: Session, customer_id: int | None) -> Iterator[Order]:
    """Place and commit orders without end."""
    outbox, dice = Outbox(), Random()
    # Kept at hand, so that the session doesn't read them again for each order.
    customers = session.scalars(select(Customer).order_by(Customer.id)).all()
    products = session.scalars(
        select(Product.id).where(Product.stock > 0).order_by(Product.id)
    ).all()
    if not products:
        raise OrderRefused("there is nothing in stock")
    for turn in itertools.count():
        basket = dice.sample(products, k=dice.randint(1, min(3, len(products))))
        placed = place_order(
            session,
            outbox,
            customer_id or customers[turn % len(customers)].id,
            {product_id: dice.randint(1, 3) for product_id in basket},
        )
        session.commit()
        yield placed


def _line(placed: Order, *, as_json: bool) -> str:
    facts: dict[str, Any] = {
        "order_id": placed.id,
        "effect_key": effect_key(placed.id),
        "job_id": placed.job_id,
        "total": str(placed.total),
        "currency": placed.currency,
    }
    if as_json:
        return json.dumps(facts)
    return "order {order_id}: {total} {currency}, job {job_id}, effect {effect_key}".format(**facts)


def _complain(problem: str, code: int) -> int:
    sys.stderr.write(f"shop: {problem}\n")
    return code
