"""The shop's tables, and a few customers and products to begin with.

What must never be false is also a constraint in the database, for those who write past this code.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated

from sqlalchemy import (
    CheckConstraint,
    Connection,
    DateTime,
    Engine,
    ForeignKey,
    Identity,
    MetaData,
    Numeric,
    func,
    insert,
    select,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship
from sqlalchemy.schema import CreateSchema
from sqlalchemy.types import BigInteger

SCHEMA = "shop"
#: The largest amount that a Money column holds.
MONEY_MAX = Decimal("9999999999.99")

Id = Annotated[int, mapped_column(BigInteger, Identity(), primary_key=True)]
Money = Annotated[Decimal, mapped_column(Numeric(12, 2))]
#: An ISO 4217 code.
Currency = Annotated[str, mapped_column(CheckConstraint("currency ~ '^[A-Z]{3}$'"))]


class Base(DeclarativeBase):
    """All tables live in a schema of their own, beside the outbox's."""

    metadata = MetaData(schema=SCHEMA)


class Customer(Base):
    """Somebody who orders."""

    __tablename__ = "customers"

    id: Mapped[Id]
    name: Mapped[str]
    email: Mapped[str] = mapped_column(unique=True)


class Product(Base):
    """Something to order, while there is stock."""

    __tablename__ = "products"
    __table_args__ = (CheckConstraint("stock >= 0"), CheckConstraint("price >= 0"))

    id: Mapped[Id]
    name: Mapped[str]
    price: Mapped[Money]
    currency: Mapped[Currency]
    stock: Mapped[int]


class Order(Base):
    """What a customer has ordered, at the prices of that moment.

    ``job_id`` is no column: the outbox's own number of the e-mail's job, known only to who placed
    the order just now.
    """

    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("total >= 0"),)
    __allow_unmapped__ = True

    job_id: int | None = None

    id: Mapped[Id]
    customer_id: Mapped[int] = mapped_column(ForeignKey(Customer.id), index=True)
    total: Mapped[Money]
    currency: Mapped[Currency]
    placed_at: Mapped[datetime] = mapped_column(
        DateTime(timezone=True), server_default=func.clock_timestamp()
    )

    customer: Mapped[Customer] = relationship()
    lines: Mapped[list[OrderLine]] = relationship(order_by="OrderLine.number")


class OrderLine(Base):
    """One product of an order."""

    __tablename__ = "order_lines"
    __table_args__ = (
        CheckConstraint("quantity > 0"),
        CheckConstraint("total = quantity * unit_price", name="order_lines_total_is_exact"),
    )

    order_id: Mapped[int] = mapped_column(ForeignKey(Order.id), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    product_id: Mapped[int] = mapped_column(ForeignKey(Product.id), index=True)
    quantity: Mapped[int]
    unit_price: Mapped[Money]
    total: Mapped[Money]

    product: Mapped[Product] = relationship()


def create_tables(engine: Engine) -> None:
    """Create what is missing of schema, tables and sample rows; two at once wait for each other."""
    with engine.begin() as connection:
        connection.execute(
            text("SELECT pg_advisory_xact_lock(hashtextextended('shop.create_tables', 0))")
        )
        connection.execute(CreateSchema(SCHEMA, if_not_exists=True))
        Base.metadata.create_all(connection)
        _fill(connection)


def _fill(connection: Connection) -> None:
    for table, rows in ((Customer, CUSTOMERS), (Product, PRODUCTS)):
        if connection.scalar(select(table.id).limit(1)) is None:
            connection.execute(insert(table), rows)


# Names of people come in all scripts; the addresses belong to nobody (RFC 2606).
CUSTOMERS: list[dict[str, object]] = [
    {"name": "Ada Okafor", "email": "ada@example.com"},
    {"name": "Bjørn Åsgård", "email": "bjorn@example.org"},
    {"name": "Chloé Dubois", "email": "chloe@example.com"},
    {"name": "Dmitri Ivanov", "email": "dmitri@example.org"},
    {"name": "山田 絵美", "email": "emi@example.com"},
    {"name": "Fatima al-Zahra", "email": "fatima@example.org"},
    {"name": "Grace O'Neill", "email": "grace@example.com"},
    {"name": "Hüseyin Çelik", "email": "huseyin@example.org"},
]

# Enough on stock for years of examples.
PRODUCTS: list[dict[str, object]] = [
    {"name": name, "price": Decimal(price), "currency": "EUR", "stock": 1_000_000}
    for name, price in (
        ("Teapot, cast iron", "49.90"),
        ("Teacup", "7.45"),
        ("Sencha, 100 g", "12.80"),
        ("Assam, 250 g", "9.95"),
        ("Bamboo whisk", "18.00"),
        ("Tea towel, linen", "6.35"),
        ("Honey from the heath", "8.20"),
        ("Strainer", "3.99"),
    )
]
