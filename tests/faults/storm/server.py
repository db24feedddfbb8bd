"""The storm's own PostgreSQL, which can be shut down at once, again and again."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from outbox import postgres_binaries, schema, unprivileged
from outbox.embedded import DATABASE, PORT, EmbeddedPostgres
from shop_example.demo.leash import Leash
from tests.databases import MEMORY, MEMORY_BYTES_MIN

PREFIX = "outbox-storm-"
START_SECONDS = 60.0
POLL_SECONDS = 0.005
#: The shop's table, as the oracle reads it, beside the outbox; and what it meant to place.
SHOP = "CREATE SCHEMA shop; CREATE TABLE shop.orders (id bigint PRIMARY KEY)"


class Server:
    """A cluster of its own, made by the embedded server and run by the rig itself.

    The rig is then its postmaster's parent: it hears of its end at once, and starts it again
    without the tenth of a second that pg_ctl waits between two looks. Durability is PostgreSQL's
    default. Databases are copies of a migrated one.
    """

    def __init__(self, directory: Path, leash: Leash) -> None:
        self._made = EmbeddedPostgres(directory)
        self._leash = leash
        self._count = 0
        url = self._made.start()
        schema.migrate(url)
        with psycopg.connect(url) as connection:
            connection.execute(SHOP)
        self._made.stop()
        self._postmaster = self._launch()
        self._wait_until_up()

    @property
    def version(self) -> str:
        """PostgreSQL's own."""
        with psycopg.connect(self._made.url("postgres")) as connection:
            row = connection.execute("SHOW server_version").fetchone()
            assert row is not None
            return str(row[0])

    def create(self) -> str:
        """The URL of a new database with the outbox and the shop."""
        self._count += 1
        name = f"storm_{self._count}"
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE "{DATABASE}"')
        return self._made.url(name)

    def drop(self, url: str) -> None:
        """Drop a database, ending the sessions that still use it."""
        name = url.partition("?")[0].rpartition("/")[2]
        self._execute(f'DROP DATABASE "{name}" WITH (FORCE)')

    def shut_down(self) -> None:
        """An immediate shutdown: no session is warned, nothing is written to its end."""
        self._postmaster.send_signal(signal.SIGQUIT)
        self._postmaster.wait(START_SECONDS)

    def start(self) -> None:
        """Start it again, and wait until it has recovered."""
        self._postmaster = self._launch()
        self._wait_until_up()

    def close(self) -> None:
        """Stop it; its directory stays."""
        if self._postmaster.poll() is None:
            self.shut_down()

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self._made.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    def _launch(self) -> subprocess.Popen[bytes]:
        program = postgres_binaries.program(self._made._binaries, "postgres")
        user, group = unprivileged.account() if unprivileged.is_root() else (None, None)
        sockets = str(self._made.socket_directory)
        with self._made.log.open("ab") as log:
            return subprocess.Popen(
                [program, "-D", self._made.data, "-h", "", "-p", str(PORT), "-k", sockets],
                cwd=self._made.home,
                env=unprivileged.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=self._leash._guard.pid,
                user=user,
                group=group,
                extra_groups=[] if unprivileged.is_root() else None,
                umask=0o077,
            )

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self._made.url()).close()
                return
            if self._postmaster.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the storm's PostgreSQL does not start, see {self._made.log}")
            time.sleep(POLL_SECONDS)


@contextmanager
def server(leash: Leash) -> Iterator[Server]:
    """A server in a directory of its own, removed at the end; what dead runs have left, too.

    In memory where that is roomy: an immediate shutdown ends processes, and what they have written
    is in the system's hands, on whatever disk.
    """
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > MEMORY_BYTES_MIN
    above = MEMORY if roomy else Path(tempfile.gettempdir())
    _sweep(above)
    directory = above / f"{PREFIX}{os.getpid()}"
    with _kept(directory):
        made = Server(directory, leash)
        try:
            yield made
        finally:
            made.close()
            shutil.rmtree(directory)


def _sweep(above: Path) -> None:
    for lock in above.glob(f"{PREFIX}*.lock"):
        directory = lock.with_suffix("")
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(directory, ignore_errors=True)
            lock.unlink(missing_ok=True)


@contextmanager
def _kept(directory: Path) -> Iterator[None]:
    """While this process lives, nobody sweeps its directory."""
    lock = directory.with_suffix(".lock")
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink()
