"""Placing an order: the order and its e-mail's job in one transaction.

This is the pattern. Either both are committed or neither is, and nothing leaves the house while
the transaction is open: a consumer sends the e-mail afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from shop_example.tables import MONEY_MAX, Customer, Order, OrderLine, Product

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from outbox import Outbox


class OrderRefused(Exception):
    """An order can't be placed; the text says why. Nothing was written, the transaction goes on."""


class UnknownCustomer(OrderRefused):
    """There is no customer with this id."""


class UnknownProduct(OrderRefused):
    """There is no product with this id."""


class WrongQuantity(OrderRefused):
    """Nothing was ordered, or a quantity is no whole number from 1 on."""


class TooLittleStock(OrderRefused):
    """More was ordered than there is."""


class WrongTotal(OrderRefused):
    """The prices are in several currencies, or their sum is larger than an order's may be."""


def place_order(
    session: Session, outbox: Outbox, customer_id: int, quantities: Mapping[int, int]
) -> Order:
    """Place an order, and leave the job of its e-mail, in the caller's transaction.

    Both become real when the caller commits, and neither does when it rolls back.

    Args:
        session: the caller's, on the database that holds the outbox.
        outbox: where the job is left.
        customer_id: who orders.
        quantities: what, and how much of it: whole numbers by product id.

    Raises:
        OrderRefused: one of its kinds.
    """
    _check_quantities(quantities)
    customer = session.get(Customer, customer_id)
    if customer is None:
        raise UnknownCustomer(f"there is no customer {customer_id}")
    products = _lock(session, quantities)
    order = _write_up(customer, products, quantities)

    for product in products:
        product.stock -= quantities[product.id]
    session.add(order)
    session.flush()

    order.job_id = outbox.enqueue(
        session, "email.order_confirmation", confirmation(order), effect_key=effect_key(order.id)
    )
    return order


def effect_key(order_id: int) -> str:
    """Name the one e-mail that confirms an order."""
    return f"email-order-{order_id}"


def confirmation(order: Order) -> dict[str, Any]:
    """Return what the e-mail says, as JSON: amounts as texts, which stay exact."""
    return {
        "order_id": order.id,
        "placed_at": order.placed_at.isoformat(),
        "customer": {"name": order.customer.name, "email": order.customer.email},
        "lines": [
            {
                "product": line.product.name,
                "quantity": line.quantity,
                "unit_price": str(line.unit_price),
                "total": str(line.total),
            }
            for line in order.lines
        ],
        "total": str(order.total),
        "currency": order.currency,
    }


def _check_quantities(quantities: Mapping[int, int]) -> None:
    if not quantities:
        raise WrongQuantity("an order needs at least one product")
    for product_id, quantity in quantities.items():
        if type(quantity) is not int or quantity < 1:
            raise WrongQuantity(f"product {product_id}: {quantity!r} is no whole number from 1 on")


def _lock(session: Session, quantities: Mapping[int, int]) -> Sequence[Product]:
    """Lock the products until the transaction ends, in the order of their ids, so that no two
    orders wait for each other. Their stock is read anew: the session may remember an older one.
    """
    query = (
        select(Product)
        .where(Product.id.in_(quantities))
        .order_by(Product.id)
        .with_for_update(key_share=True)
        .execution_options(populate_existing=True)
    )
    products = session.scalars(query).all()
    for product_id in quantities.keys() - {product.id for product in products}:
        raise UnknownProduct(f"there is no product {product_id}")
    return products


def _write_up(
    customer: Customer, products: Sequence[Product], quantities: Mapping[int, int]
) -> Order:
    """Check stock and amounts, and fill in the order; nothing is changed yet."""
    for product in products:
        if quantities[product.id] > product.stock:
            raise TooLittleStock(
                f"{product.name}: {quantities[product.id]} ordered, {product.stock} in stock"
            )
    lines = [
        _line(number, product, quantities[product.id])
        for number, product in enumerate(products, start=1)
    ]
    total = sum((line.total for line in lines), start=Decimal())
    currencies = {product.currency for product in products}
    if len(currencies) > 1:
        raise WrongTotal(
            f"one order can't be in several currencies: {', '.join(sorted(currencies))}"
        )
    if total > MONEY_MAX:
        raise WrongTotal(f"{total} is more than the {MONEY_MAX} that an order may come to")
    return Order(customer=customer, lines=lines, total=total, currency=currencies.pop())


def _line(number: int, product: Product, quantity: int) -> OrderLine:
    return OrderLine(
        number=number,
        product=product,
        quantity=quantity,
        unit_price=product.price,
        total=product.price * quantity,
    )
