"""The shop's database: the one that holds the outbox, too, or there would be no one transaction."""

from __future__ import annotations

from urllib.parse import SplitResult, parse_qsl, quote, urlencode, urlsplit

import psycopg
from sqlalchemy import Engine, create_engine

from outbox import embedded
from outbox.connection import libpq_url
from outbox.settings import OutboxSettings


def database_url() -> str:
    """Return ``OUTBOX_DATABASE_URL``, or the URL of the embedded server, which then runs.

    Raises:
        OutboxError: a wrong setting, or the embedded server can't start.
    """
    return OutboxSettings.load().database_url or embedded.start()


def engine_of(url: str, application_name: str = "shop") -> Engine:
    """Return an engine for a ``postgresql://`` URL, read exactly as the outbox's commands read it.

    Raises:
        ConfigurationError: it is no PostgreSQL URL.
    """
    plain = libpq_url(url)
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(
            plain, connect_timeout=10, application_name=application_name
        ),
    )


def without_password(url: str) -> str:
    """Return a database URL as it may be shown."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    return _url(user.partition(":")[0] + at + host, parts.path, _query(parts, without="password"))


def with_database(url: str, name: str) -> str:
    """Return the URL of another database on the same server."""
    parts = urlsplit(libpq_url(url))
    return _url(parts.netloc, f"/{name}", _query(parts, without="dbname"))


def _query(parts: SplitResult, *, without: str) -> str:
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name != without]
    return urlencode(kept, safe="/", quote_via=quote)


def _url(host: str, path: str, query: str) -> str:
    # Not geturl(): of postgresql:///shop it makes postgresql:/shop, which libpq refuses.
    return f"postgresql://{host}{path}" + (f"?{query}" if query else "")
