"""A disk that is full: under the tables, where statements fail, or under the WAL, where all does.

The history's database lies in a tablespace on a small filesystem, which fills up and becomes free
again. At the end of a history the same happens to the WAL: PostgreSQL panics, and can't recover
before there is room.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from outbox import unprivileged
from tests.faults.storm.disk import Disk
from tests.faults.storm.history import History
from tests.faults.storm.life import now
from tests.faults.storm.refusals import CONSUMERS
from tests.faults.storm.server import Server, name_of
from tests.faults.storm.shutdowns import living, wait_for_work
from tests.waiting import eventually

READY = 100
CONCURRENCY = "50"
TABLES_BYTES_MAX = 64_000_000
#: Beyond what the WAL takes already: room for the segments that each panic leaves to be recovered.
WAL_BYTES_MORE = 256_000_000
#: One fault in so many is the WAL's.
WAL_EVERY = 5
#: How long it stays full after the first statement has failed; a lease is 1 s.
FULL_SECONDS = (0.1, 1.3)
OVER_IT_SECONDS = 0.5
#: A server whose recovery has failed for want of room may wait for ever, and takes a restart.
RECOVERY_SECONDS_MAX = 2.0
#: As the server's log has it: SQLSTATE 53100, or a panic.
NO_SPACE = "No space left on device"


def full_disks(history: History, faults: int) -> None:
    """So many times there is no room; most times for the tables, at the end for the WAL."""
    of_wal = -(-faults // WAL_EVERY)
    disk = history.until_drained(_tables_on_a_small_disk(history))
    settings = [history.settings(EMAIL_CONCURRENCY=CONCURRENCY)] * CONSUMERS
    with living(history, settings), history.shop.busy(READY):
        for _ in range(faults - of_wal):
            _fill(history, disk, "tables")
        with _wal_on_a_small_disk(history) as disk:
            for _ in range(of_wal):
                _fill(history, disk, "WAL")


def _fill(history: History, disk: Disk, what: str) -> None:
    server = history.world.server
    wait_for_work(history)
    at = now()
    _, log_end = server.complaints()

    def failing() -> bool:
        disk.fill()
        if what == "WAL":
            _use_up_a_segment(server)
        return NO_SPACE in server.complaints(log_end)[0]

    try:
        eventually(failing, 60)
        time.sleep(history.dice.uniform(*FULL_SECONDS))
    finally:
        disk.free()
        if not server.comes_up(RECOVERY_SECONDS_MAX):
            history.count(f"{what}: PostgreSQL had to be started again")
            server.shut_down()
            server.start()
    complaints, _ = server.complaints(log_end)
    history.count(f"{what}: errors and panics", number=complaints.count(NO_SPACE))
    history.blow(at, now() + OVER_IT_SECONDS)
    history.add_fault(what)


def _use_up_a_segment(server: Server) -> None:
    """What has been made for later has room of its own."""
    try:
        server.execute("SELECT pg_switch_wal()")
    except psycopg.OperationalError:
        return


@contextmanager
def _tables_on_a_small_disk(history: History) -> Iterator[Disk]:
    server, name = history.world.server, name_of(history.database_url)
    with server.disk("tables", TABLES_BYTES_MAX) as disk:
        server.execute(f"CREATE TABLESPACE small LOCATION '{disk.room('tables')}'")
        server.execute(f'ALTER DATABASE "{name}" SET TABLESPACE small')
        try:
            yield disk
        finally:
            disk.free()
            eventually(lambda: _moved_back(server, name))
            server.execute("DROP TABLESPACE small")


@contextmanager
def _wal_on_a_small_disk(history: History) -> Iterator[Disk]:
    server = history.world.server
    at = now()
    server.shut_down()
    wal = server.data / "pg_wal"
    taken = sum(file.stat().st_size for file in wal.rglob("*") if file.is_file())
    with server.disk("wal", taken + WAL_BYTES_MORE) as disk:
        elsewhere = disk.room("pg_wal")
        _move(wal, elsewhere)
        wal.rmdir()
        wal.symlink_to(elsewhere)
        server.start()
        history.blow(at, now() + OVER_IT_SECONDS)
        try:
            yield disk
        finally:
            disk.free()
            at = now()
            server.shut_down()
            wal.unlink()
            server.make_room("pg_wal")
            _move(elsewhere, wal)
            server.start()
            history.blow(at, now() + OVER_IT_SECONDS)


def _move(here: Path, there: Path) -> None:
    """Of another filesystem, so that each file has to be given to PostgreSQL's account again."""
    for path in here.iterdir():
        shutil.move(path, there)
    for path in there.rglob("*"):
        os.chown(path, *unprivileged.account())


def _moved_back(server: Server, name: str) -> bool:
    """Bring a database to the large disk again; a session that is still ending is in the way."""
    server.end_sessions(name)
    try:
        server.execute(f'ALTER DATABASE "{name}" SET TABLESPACE pg_default')
    except psycopg.errors.ObjectInUse:
        return False
    return True
