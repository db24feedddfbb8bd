"""The shop's e-mails: ``EMAIL_APP=shop_example.emails:emails``.

Each function turns a job's payload into a message, and depends on nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from consumers.email import Address, Emails, Message

emails = Emails(templates="shop_example:templates")


@dataclass(frozen=True, slots=True)
class Customer:
    """Who gets the e-mail."""

    name: str
    email: str


@dataclass(frozen=True, slots=True)
class Line:
    """One product of the order."""

    product: str
    quantity: int
    unit_price: Decimal
    total: Decimal


@dataclass(frozen=True, slots=True)
class OrderConfirmation:
    """The payload that ``orders.confirmation`` writes."""

    order_id: int
    placed_at: datetime
    customer: Customer
    lines: list[Line]
    total: Decimal
    currency: str


@emails.topic("email.order_confirmation")
def order_confirmation(order: OrderConfirmation) -> Message:
    """Confirm an order to its customer."""
    parts = emails.template("order_confirmation", order=order)
    return Message(
        to=Address(order.customer.email, order.customer.name),
        subject=parts.subject,
        text=parts.text,
        html=parts.html,
        tags={"order": str(order.order_id)},
    )
