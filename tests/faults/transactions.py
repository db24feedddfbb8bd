"""Processes that write in transactions, with a name for each statement: producers and commands."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from functools import cache, wraps
from importlib.resources import files
from typing import Any

import psycopg
from psycopg._connection_base import BaseConnection
from sqlalchemy.orm import Session

from outbox import NewJob, Outbox, schema, statements
from outbox.commands import app, main  # noqa: F401 -- app: the slow imports, before any fork
from shop_example.database import engine_of
from shop_example.orders import effect_key, place_order
from tests.faults.driver import Follow, watch_statements
from tests.faults.orders import payload

Arrive = Callable[[str], None]
TOPIC = "email.order_confirmation"
#: What comes before the name of a statement's object.
_BEFORE_THE_OBJECT = ("FROM", "INTO", "EXISTS")


def place_by_psycopg(arrive: Arrive) -> int:
    """An order and its job by hand, on a psycopg connection."""
    watch(arrive)
    with psycopg.connect(os.environ["OUTBOX_DATABASE_URL"], application_name="shop") as connection:
        row = connection.execute(
            "INSERT INTO shop.orders (customer_id, total, currency)"
            " SELECT min(id), 12, 'EUR' FROM shop.customers RETURNING id"
        ).fetchone()
        assert row is not None
        mail = payload(order_id=row[0])
        Outbox().enqueue(connection, TOPIC, mail, effect_key=effect_key(row[0]))
    return 0


def place_many_by_psycopg(arrive: Arrive) -> int:
    """Two orders and their jobs, each kind in one statement."""
    watch(arrive)
    with psycopg.connect(os.environ["OUTBOX_DATABASE_URL"], application_name="shop") as connection:
        rows = connection.execute(
            "INSERT INTO shop.orders (customer_id, total, currency)"
            " SELECT id, 12, 'EUR' FROM shop.customers LIMIT 2 RETURNING id"
        ).fetchall()
        jobs = [
            NewJob(payload=payload(order_id=id_), effect_key=effect_key(id_)) for (id_,) in rows
        ]
        Outbox().enqueue_many(connection, TOPIC, jobs)
    return 0


def place_by_sqlalchemy(arrive: Arrive) -> int:
    """An order as the shop places it, on a session whose pool has a connection already."""
    engine = engine_of(os.environ["OUTBOX_DATABASE_URL"])
    engine.connect().close()
    watch(arrive)
    with Session(engine) as session, session.begin():
        place_order(session, Outbox(), 1, {1: 2})
    return 0


def run_outbox(arrive: Arrive, *arguments: str) -> int:
    """The ``outbox`` command; it ends in SystemExit."""
    watch(arrive)
    sys.argv = ["outbox", *arguments]
    main()
    return 0


SUBJECTS: Mapping[str, Callable[..., int]] = {
    "psycopg": place_by_psycopg,
    "psycopg, many": place_many_by_psycopg,
    "SQLAlchemy": place_by_sqlalchemy,
    "outbox": run_outbox,
}


def watch(arrive: Arrive) -> None:
    """Tell each statement of this process with its turn, and each connect."""
    turns: Counter[str] = Counter()

    def follow(query: bytes) -> Follow:
        name = name_of(query)
        turns[name] += 1
        step = f"{name}#{turns[name]}"
        return lambda moment: arrive(f"{step}:{moment}")

    watch_statements(follow)
    connect = BaseConnection.__dict__["_connect_gen"].__func__

    @wraps(connect)
    def wrapped(cls: Any, *given: Any, **named: Any) -> Generator[Any, Any, Any]:
        arrive("connect:before")
        connection = yield from connect(cls, *given, **named)
        arrive("connect:after")
        return connection

    setattr(BaseConnection, "_connect_gen", classmethod(wrapped))  # noqa: B010


def name_of(query: bytes) -> str:
    """A statement's file, or its verb and its table."""
    if (known := _files().get(_key(query))) is not None:
        return known
    words = query.decode().split()
    if words[0] in {"BEGIN", "COMMIT", "ROLLBACK"}:
        return words[0]
    places = [words.index(word) for word in _BEFORE_THE_OBJECT if word in words]
    first, last = words[0], min(places, default=0) + 1
    return re.sub(r"[(=].*", "", f"{first} {words[last] if last < len(words) else ''}").strip()


@cache
def _files() -> Mapping[str, str]:
    named = {
        _key(re.sub(r":[a-z_]+\b", "", statements.text(name)).encode()): name
        for name in statement_names()
    }
    steps = {
        _key(step.sql.encode()): f"migration {step.version:04d}" for step in schema.migrations()
    }
    return named | steps


def statement_names() -> list[str]:
    """The statements that the product ships."""
    folder = files("outbox").joinpath("sql")
    return sorted(file.name.removesuffix(".sql") for file in folder.iterdir())


def _key(query: bytes) -> str:
    """A statement without its parameters, which each driver writes in its own way."""
    plain = re.sub(r"%\(\w+\)[sbt]?|\$\d+|(?<!:):[a-z_]+\b", "", query.decode())
    return re.sub(r"::\w+|\s+", "", plain)
