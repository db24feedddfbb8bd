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
from typing import Any, Self
from urllib.parse import quote

import psycopg

from outbox import postgres_binaries, schema, unprivileged
from outbox.embedded import DATABASE, PORT, SUPERUSER, EmbeddedPostgres
from shop_example.demo.leash import Leash
from tests.databases import MEMORY, MEMORY_BYTES_MIN
from tests.faults.storm.disk import Disk, unmount_below
from tests.waiting import eventually

PREFIX = "outbox-storm-"
START_SECONDS = 60.0
POLL_SECONDS = 0.005
_IN_SYNC = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
#: The shop's table, as the oracle reads it, beside the outbox; and what it meant to place.
SHOP = "CREATE SCHEMA shop; CREATE TABLE shop.orders (id bigint PRIMARY KEY)"


class Server:
    """A cluster of its own, made by the embedded server and run by the rig itself.

    The rig is then its postmaster's parent: it hears of its end at once, and starts it again
    without the tenth of a second that pg_ctl waits between two looks. Durability is PostgreSQL's
    default. Databases are copies of a migrated one.
    """

    def __init__(self, made: EmbeddedPostgres, leash: Leash, name: str | None = None) -> None:
        """A server of this cluster's own data, or, with a name, of a copy yet to be made."""
        self._made = made
        self._leash = leash
        self._count = 0
        self._data = made.home / name if name else made.data
        self._log = made.home / f"{name}.log" if name else made.log
        self._sockets = made.home / f"{name}-socket" if name else made.socket_directory
        self._postmaster: subprocess.Popen[bytes] | None = None

    @classmethod
    def make(cls, directory: Path, leash: Leash) -> Self:
        """A new cluster, and its server, which is up."""
        made = EmbeddedPostgres(directory)
        url = made.start()
        schema.migrate(url)
        with psycopg.connect(url) as connection:
            connection.execute(SHOP)
        made.stop()
        server = cls(made, leash)
        server.start()
        return server

    def other(self, name: str) -> Server:
        """Another server with room beside this one, down and without data."""
        other = Server(self._made, self._leash, name)
        unprivileged.make_private(other._sockets)
        return other

    def follow(self, primary: Server) -> None:
        """Start as its standby, with a copy of its data; nothing is committed any more without it.

        What it had is gone.
        """
        shutil.rmtree(self._data, ignore_errors=True)
        unprivileged.make_private(self._data)
        program = postgres_binaries.program(self._made._binaries, "pg_basebackup")
        source = ("-h", str(primary._sockets), "-p", str(PORT), "-U", SUPERUSER)
        how = ("-X", "stream", "-c", "fast", "-R", "-D", str(self._data))
        done = unprivileged.run([str(program), *source, *how], cwd=self._made.home)
        if done.returncode != 0:
            raise RuntimeError(f"pg_basebackup: {done.stdout}")
        self.start()
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        primary.execute("SELECT pg_reload_conf()")
        eventually(lambda: primary.execute(_IN_SYNC)[0][0] > 0, START_SECONDS)

    @property
    def sockets(self) -> Path:
        """The directory of its socket, which is a host to libpq."""
        return self._sockets

    def _url(self, database: str = DATABASE) -> str:
        return f"postgresql://{SUPERUSER}@:{PORT}/{database}?host={quote(str(self._sockets))}"

    @property
    def version(self) -> str:
        """PostgreSQL's own."""
        with psycopg.connect(self._url("postgres")) as connection:
            row = connection.execute("SHOW server_version").fetchone()
            assert row is not None
            return str(row[0])

    def create(self) -> str:
        """The URL of a new database with the outbox and the shop."""
        self._count += 1
        name = f"storm_{self._count}"
        self.execute(f'CREATE DATABASE "{name}" TEMPLATE "{DATABASE}"')
        return self._url(name)

    def drop(self, url: str) -> None:
        """Drop a database, ending the sessions that still use it."""
        self.execute(f'DROP DATABASE "{name_of(url)}" WITH (FORCE)')

    def shut_down(self) -> None:
        """An immediate shutdown: no session is warned, nothing is written to its end."""
        self._send(signal.SIGQUIT)
        if self._postmaster is not None:
            self._postmaster.wait(START_SECONDS)

    def start(self, *options: str) -> None:
        """Start it again, and wait until it has recovered."""
        self.launch(*options)
        self.wait_until_up()

    def launch(self, *options: str) -> None:
        """Start it, whether it takes anybody in or not."""
        self._postmaster = self._launch(*options)

    def launch_as_standby(self, *options: str) -> None:
        """Start it in recovery, as one that follows a primary which is not there."""
        self._make("standby.signal")
        self.launch(*options)

    def promote(self) -> None:
        """Make a primary of it, and wait until it takes writes.

        It is asked once it takes connections: before, the signal might end it.
        """
        self.wait_until_up()
        deadline = time.monotonic() + START_SECONDS
        while self._is_in_recovery():
            if self.is_down or time.monotonic() > deadline:
                raise self._does_not_start()
            self._make("promote")
            self._send(signal.SIGUSR1)
            time.sleep(10 * POLL_SECONDS)

    def freeze(self) -> None:
        """Stop each of its processes; whoever connects hears nothing, nor does who is in."""
        self._send(signal.SIGSTOP)
        self._signal_children(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal_children(signal.SIGCONT)
        self._send(signal.SIGCONT)

    @property
    def is_down(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self._postmaster is None or self._postmaster.poll() is not None

    @property
    def data(self) -> Path:
        """Where its files are."""
        return self._data

    def execute(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run it in a database that no history uses."""
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            cursor = connection.execute(statement.encode(), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def end_sessions(self, database: str) -> None:
        """End all sessions that use it."""
        self.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", database
        )

    def make_room(self, name: str) -> None:
        """A directory among its data, its own."""
        unprivileged.make_private(self._data / name)

    def complaints(self, since: int = 0) -> tuple[str, int]:
        """What its log says from there on, and where the log ends by now."""
        with self._log.open("rb") as log:
            log.seek(since)
            text = log.read()
        return text.decode(errors="replace"), since + len(text)

    @contextmanager
    def disk(self, name: str, bytes_max: int) -> Iterator[Disk]:
        """A small filesystem beside its data.

        Raises:
            OSError: see ``Disk.mount``.
        """
        disk = Disk(self._made.home / name, bytes_max)
        disk.mount()
        try:
            yield disk
        finally:
            disk.unmount()

    def close(self) -> None:
        """Stop it; its directory stays."""
        if not self.is_down:
            self.thaw()
            self.shut_down()

    def comes_up(self, seconds: float) -> bool:
        """Whether it takes connections within so long."""
        deadline = time.monotonic() + seconds
        while not self.answers(DATABASE):
            if self.is_down or time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def wait_until_up(self) -> None:
        """Wait until it takes connections."""
        if not self.comes_up(START_SECONDS):
            raise self._does_not_start()

    def answers(self, database: str) -> bool:
        """Whether it takes a connection to this database."""
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self._url(database), connect_timeout=5).close()
            return True
        return False

    def _does_not_start(self) -> RuntimeError:
        return RuntimeError(f"the storm's PostgreSQL does not start, see {self._log}")

    def _is_in_recovery(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            return bool(self.execute("SELECT pg_is_in_recovery()")[0][0])
        return True

    def _make(self, name: str) -> None:
        """An empty file among its data, its own."""
        path = self._data / name
        path.touch(mode=0o600)
        os.chown(path, *unprivileged.account())

    def _send(self, number: signal.Signals) -> None:
        if self._postmaster is not None:
            self._postmaster.send_signal(number)

    def _signal_children(self, number: signal.Signals) -> None:
        pid = self._postmaster.pid if self._postmaster else 0
        with contextlib.suppress(FileNotFoundError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), number)

    def _launch(self, *options: str) -> subprocess.Popen[bytes]:
        program = postgres_binaries.program(self._made._binaries, "postgres")
        user, group = unprivileged.account() if unprivileged.is_root() else (None, None)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [
                    program,
                    "-D",
                    self._data,
                    "-h",
                    "",
                    "-p",
                    str(PORT),
                    "-k",
                    str(self._sockets),
                    *options,
                ],
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


def name_of(url: str) -> str:
    """The database that a URL names."""
    return url.partition("?")[0].rpartition("/")[2]


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
        try:
            made = Server.make(directory, leash)
            try:
                yield made
            finally:
                made.close()
        finally:
            unmount_below(directory)
            shutil.rmtree(directory, ignore_errors=True)


def _sweep(above: Path) -> None:
    for lock in above.glob(f"{PREFIX}*.lock"):
        directory = lock.with_suffix("")
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            unmount_below(directory)
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
