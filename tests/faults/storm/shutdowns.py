"""Immediate shutdowns of PostgreSQL under load, and what its clients are cut off from.

``shutdowns``: the whole server goes at once and comes back, now and then only after longer than a
lease. ``terminations``: the sessions of living consumers are ended one by one.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.faults.storm.history import History
from tests.faults.storm.life import now
from tests.faults.storm.lives import Life
from tests.faults.storm.moments import CONNECTIONS
from tests.waiting import eventually

CONSUMERS = 2
CONCURRENCY = "50"
#: So many jobs are ready at any time.
READY = 100
#: How long all is well between two faults, at most.
PEACE_SECONDS_MAX = 0.3
#: One in so many outages lasts longer than a lease.
LONG_EVERY = 25
LONG_SECONDS = 1.5
TERMINATION_SECONDS_MAX = 0.06
#: What a consumer says that was told to stop and could not settle all within one lease.
UNSETTLED, UNSETTLED_CODE = "attempts could not be settled", 1
_RUNNING = "SELECT count(*) FROM outbox.job WHERE lease_until > clock_timestamp()"


def shutdowns(history: History, faults: int) -> None:
    """PostgreSQL is shut down so many times, each time with jobs in flight."""
    with living(history, _many(history)), history.shop.busy(READY):
        for _ in range(faults):
            wait_for_work(history)
            at = now()
            history.world.server.shut_down()
            if history.dice.randrange(LONG_EVERY) == 0:
                history.count("outages longer than a lease")
                time.sleep(LONG_SECONDS)
            history.world.server.start()
            # Until they have connected again, they know of nothing.
            history.blow(at, now() + 0.5)
            history.faults += 1


def wait_for_work(history: History) -> None:
    """Wait until a job is in flight, and then for a while in which all is well."""
    eventually(lambda: history.query(_RUNNING)[0][0] > 0, 60)
    time.sleep(history.dice.uniform(0, PEACE_SECONDS_MAX))


def terminations(history: History, faults: int) -> None:
    """So many sessions are terminated, of each of the consumers' connections in turn."""
    with (
        living(history, _many(history)) as lives,
        history.shop.busy(READY),
        psycopg.connect(history.database_url, autocommit=True) as connection,
    ):
        turn = 0
        deadline = time.monotonic() + 60 + faults
        while history.faults < faults:
            if time.monotonic() > deadline:
                history.blame("the rig", f"only {history.faults} of {faults} were found")
                return
            life, name = lives[turn % len(lives)], CONNECTIONS[turn // len(lives) % 5]
            turn += 1
            if terminate(connection, life, name):
                history.blow(now(), number=life.number)
                history.add_fault(name)
            time.sleep(history.dice.uniform(0, TERMINATION_SECONDS_MAX))


def terminate(connection: psycopg.Connection, life: Life, name: str) -> bool:
    """End this session of this consumer, if there is one right now."""
    query = """
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE %s
    """
    return (True,) in connection.execute(query, [f"outbox {name} %:{life.pid}:%"]).fetchall()


def _many(history: History) -> list[dict[str, str]]:
    return [history.settings(EMAIL_CONCURRENCY=CONCURRENCY)] * CONSUMERS


@contextmanager
def living(
    history: History, settings: Sequence[Mapping[str, str]], **how: Any
) -> Iterator[list[Life]]:
    """Consumers with these settings that live until the block ends, and then end in good order."""
    lives = [history.consumer(each, drain=False, **how) for each in settings]
    for life in lives:
        life.wait_for_birth()
    yield lives
    at = now()
    for life in lives:
        life.send(signal.SIGTERM)
    for life in lives:
        expect_a_good_end(history, life, at)


def expect_a_good_end(history: History, life: Life, at: float) -> None:
    """It was told to stop then; it has settled what it had begun.

    A machine that gives it too little time for that has hurt it, and this is counted.
    """
    life.wait()
    if life.code == UNSETTLED_CODE and UNSETTLED in life.log.read_text():
        history.blow(at, now(), number=life.number)
        history.count("told to stop, and too slow to settle within a lease")
    elif life.code != 0:
        history.blame(f"life {life.number}", f"ended with {life.code or life.signal}")
