"""Where the tests' databases come from: a copy of a migrated template for each test.

The server is the one of ``OUTBOX_TEST_DATABASE_URL`` (PostgreSQL 14 or newer; the role must be
allowed to create databases), else an embedded one of the tests' own, which stays up for the next
run: ``python -m tests.databases stop`` ends it, ``wipe`` removes it.

What a killed run has left is swept by the next one. Whether a run still lives is told by an
advisory lock of its session, not by a process id, so that runs on several machines may share a
server.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg

from outbox import embedded

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
MEMORY = Path("/dev/shm")  # noqa: S108
MEMORY_BYTES_MIN = 2_000_000_000
SETUP = "outbox_test"


def server_directory() -> Path:
    """In memory where that is roomy: copying a template makes 300 files, and on some disks that
    takes a quarter of a second. Processes may be killed all the same; only the machine may not.
    """
    directory = MEMORY / f"outbox-tests-{os.geteuid()}"
    if directory.exists():
        mine = directory.stat().st_uid == os.geteuid()
    else:
        mine = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN
    return directory if mine else embedded.default_directory() / "tests"


def server_url() -> str:
    """A database on the server from which the others can be made."""
    if url := os.environ.get("OUTBOX_TEST_DATABASE_URL"):
        parts = urlsplit(url)
        return parts._replace(scheme=parts.scheme.partition("+")[0]).geturl()
    server = embedded.EmbeddedPostgres(server_directory())
    server.start()
    return server.url("postgres")


def migrations_hash() -> str:
    """Names the template, so that a changed migration gets a new one."""
    files = [*sorted((ROOT / "outbox" / "migrations").glob("*.sql")), ROOT / "outbox/schema.py"]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in files)).hexdigest()[:12]


@dataclass(slots=True)
class Databases:
    """The databases of one test process; ``admin`` holds its advisory locks while it lives."""

    url: str
    admin: psycopg.Connection
    run: str = field(default_factory=lambda: f"outbox_test_{os.getpid()}_{secrets.token_hex(3)}")
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    template: str | None = None

    def create_empty(self) -> str:
        """The URL of a new database with nothing in it."""
        return self._create("template1")

    def create_migrated(self) -> str:
        """The URL of a new database with the outbox schema."""
        if self.template is None:
            self.template = self._find_or_build_template()
        return self._create(self.template)

    def drop(self, url: str) -> None:
        """Drop a database, ending the sessions that still use it."""
        self.admin.execute(f'DROP DATABASE "{urlsplit(url).path[1:]}" WITH (FORCE)')

    def sweep(self) -> None:
        """Drop what killed runs have left, and the templates of other migrations."""
        with self._setup():
            query = r"SELECT datname FROM pg_database WHERE datname LIKE 'outbox\_test\_%'"
            for (name,) in self.admin.execute(query).fetchall():
                owner = name.rpartition("_")[0]
                # A session can take its own locks again, so ours would say nothing.
                mine = owner == self.run or name == self.template
                if not mine and self._lock("pg_try_advisory_lock", owner):
                    self.admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
                    self._lock("pg_advisory_unlock", owner)

    def _create(self, template: str) -> str:
        name = f"{self.run}_{next(self.numbers)}"
        # PostgreSQL 15's default, STRATEGY WAL_LOG, was measured to be the quicker one: on a
        # disk 250 ms against 420 for FILE_COPY, and 15 against 60 for dropping; the same in memory.
        self.admin.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
        return self._url(name)

    def _find_or_build_template(self) -> str:
        owner = f"outbox_test_template_{migrations_hash()}"
        template = f"{owner}_1"
        with self._setup():
            self._lock("pg_advisory_lock_shared", owner)
            query = "SELECT true FROM pg_database WHERE datname = %s"
            if self.admin.execute(query, [template]).fetchone() is None:
                self._build(template)
        return template

    def _build(self, template: str) -> None:
        """Under a name of this run until it is whole."""
        from outbox import schema

        url = self.create_empty()
        schema.migrate(url)
        self.admin.execute(f'ALTER DATABASE "{urlsplit(url).path[1:]}" RENAME TO "{template}"')

    def _url(self, name: str) -> str:
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    @contextmanager
    def _setup(self) -> Iterator[None]:
        """One process at a time sweeps or builds."""
        self._lock("pg_advisory_lock", SETUP)
        try:
            yield
        finally:
            self._lock("pg_advisory_unlock", SETUP)

    def _lock(self, function: str, name: str) -> bool:
        query = f"SELECT {function}(hashtextextended(%s, 0))"
        row = self.admin.execute(query, [name]).fetchone()
        return row is not None and row[0] is True


@contextmanager
def databases() -> Iterator[Databases]:
    """The databases of this process, from a server without leftovers of dead ones."""
    url = server_url()
    with psycopg.connect(url, autocommit=True) as admin:
        mine = Databases(url, admin)
        mine._lock("pg_advisory_lock", mine.run)
        mine.sweep()
        yield mine


if __name__ == "__main__":
    sys.exit(embedded.main([*sys.argv[1:], "--directory", str(server_directory())]))
