"""The shop's database: which one, and how it is shown."""

from __future__ import annotations

import pytest

from outbox import ConfigurationError
from shop_example.database import database_url, engine_of, with_database, without_password


def test_the_database_is_the_one_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for every command."""
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://shop@db/shop")
    assert database_url() == "postgresql://shop@db/shop"


@pytest.mark.parametrize("url", ["mysql://root@localhost/shop", "shop"])
def test_another_kind_of_url_is_refused_by_name(url: str) -> None:
    """The setting is named, and the URL, which may hold a password, is not repeated."""
    with pytest.raises(ConfigurationError, match="OUTBOX_DATABASE_URL") as caught:
        engine_of(url)
    assert url not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://shop:secret@db:5432/shop", "postgresql://shop@db:5432/shop"),
        ("postgresql://db/shop?password=secret&user=me", "postgresql://db/shop?user=me"),
        ("postgresql://me@:5432/shop?host=/run/pg", "postgresql://me@:5432/shop?host=/run/pg"),
        ("postgresql:///shop", "postgresql:///shop"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    """Wherever it stands."""
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("url", "other"),
    [
        ("postgresql+asyncpg://me:pw@db:5432/shop", "postgresql://me:pw@db:5432/other"),
        ("postgresql:///shop?host=/run/pg", "postgresql:///other?host=/run/pg"),
        (
            "postgresql://db/?dbname=shop&options=-c%20jit%3Doff",
            "postgresql://db/other?options=-c%20jit%3Doff",
        ),
    ],
)
def test_another_database_is_on_the_same_server(url: str, other: str) -> None:
    """With the same user, password and options."""
    assert with_database(url, "other") == other
