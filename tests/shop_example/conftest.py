"""What the shop's tests may ask for: its tables in a database of their own, and a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from shop_example.database import engine_of
from shop_example.tables import create_tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """An engine on a database with the outbox, and the shop with its sample rows."""
    engine = engine_of(database_url)
    create_tables(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session on that database."""
    with Session(engine) as session:
        yield session
