"""The PostgreSQL that is measured: its durability is looked at, never taken for granted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from urllib.parse import urlsplit

import psycopg

from outbox import embedded, schema

#: Settings that would make any figure worthless.
_DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


class NotDurable(Exception):
    """The server may lose what it has committed: nothing that it does counts."""


@dataclass(slots=True)
class Server:
    """A server on which each measurement gets a database of its own."""

    url: str
    version: str
    numbers: Iterator[int]
    #: The embedded one that was started for this run.
    own: embedded.EmbeddedPostgres | None = None

    @classmethod
    def start(cls) -> Server:
        """The server of ``OUTBOX_BENCH_DATABASE_URL``, else an embedded one of our own.

        The embedded one lies on disk, where a commit costs what it costs.

        Raises:
            NotDurable: one of the settings is off.
        """
        url, started = os.environ.get("OUTBOX_BENCH_DATABASE_URL"), None
        if url is None:
            own = embedded.EmbeddedPostgres(embedded.default_directory() / "benchmarks")
            started = None if own.is_running() else own
            own.start()
            url = own.url("postgres")
        with psycopg.connect(url, autocommit=True) as connection:
            for name, wanted in _DURABLE.items():
                if (value := _setting(connection, name)) != wanted:
                    raise NotDurable(f"{name} is {value}; no figure counts then")
            _sweep(connection)
            version = _setting(connection, "server_version").split()[0]
            return cls(url, version, count(1), started)

    def stop(self) -> None:
        """Stop it where it was started for this run; its files stay for the next one."""
        if self.own is not None:
            self.own.stop()

    @contextmanager
    def database(self, *, migrated: bool = True) -> Iterator[str]:
        """The URL of a database that is dropped afterwards."""
        name = f"outbox_bench_{os.getpid()}_{next(self.numbers)}"
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name}".encode())
            url = urlsplit(self.url)._replace(path=f"/{name}").geturl()
            try:
                if migrated:
                    schema.migrate(url)
                # What the last measurement has left to be written is not this one's burden.
                admin.execute("CHECKPOINT")
                yield url
            finally:
                admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def _setting(connection: psycopg.Connection, name: str) -> str:
    row = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert row is not None
    return str(row[0])


def _sweep(admin: psycopg.Connection) -> None:
    """Drop what killed runs have left behind."""
    query = r"SELECT datname FROM pg_database WHERE datname LIKE 'outbox\_bench\_%'"
    for (name,) in admin.execute(query).fetchall():
        try:
            os.kill(int(name.split("_")[2]), 0)
        except ProcessLookupError:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
