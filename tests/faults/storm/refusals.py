"""PostgreSQL away for long, in every way in which one can be away.

``refusals``: for several leases, and several times whatever else a consumer waits for. Consumers
that live must outlast it; one that is born meanwhile waits, or says that it is refused for good.
``outages``: for minutes, with consumers that have the settings and the waits of production.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from math import ceil

import psycopg

from tests.faults.storm.history import History
from tests.faults.storm.life import WRONG_USE, now
from tests.faults.storm.server import Server, name_of
from tests.faults.storm.shutdowns import expect_a_good_end, living, wait_for_work
from tests.waiting import eventually

CONSUMERS = 2
READY = 40
CONCURRENCY = "20"
#: How long PostgreSQL is away: 3 to 4 leases, and 6 to 8 times as long as a call may take.
AWAY_SECONDS = (3.0, 4.0)
#: Until all have connected again: libpq waits 2 s for a server that does not answer.
OVER_IT_SECONDS = 2.5
#: Connections that a server has which turns clients away for their number.
FEW = 8
MINE = "storm"

#: Production's settings: whatever these histories shorten is the library's own again.
IN_EARNEST = (
    "OUTBOX_LEASE_SECONDS",
    "OUTBOX_HEARTBEAT_SECONDS",
    "OUTBOX_POLL_SECONDS",
    "OUTBOX_BACKOFF_SECONDS",
    "OUTBOX_BACKOFF_MAX_SECONDS",
    "OUTBOX_MAX_ATTEMPTS",
    "EMAIL_TIMEOUT_SECONDS",
    "EMAIL_CONCURRENCY",
)
OUTAGE_SECONDS = 130.0
#: A lease, a full scan and a backoff of production's, and some.
RECOVERY_SECONDS_MAX = 120.0
_AT_WORK = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE datname = current_database() AND application_name LIKE 'outbox claim %%'"
)
_NOTHING_LEFT = "SELECT count(*) = 0 FROM outbox.job WHERE waiting IS DISTINCT FROM 'resolve'"
_END_OTHERS = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND application_name <> %s"
)


def refusals(history: History, faults: int) -> None:
    """PostgreSQL is away so many times, in each way in turn."""
    history.own_settings = {"EMAIL_CONCURRENCY": CONCURRENCY}
    ways = list(WAYS)
    first = history.dice.randrange(len(ways))
    with living(history, [history.settings()] * CONSUMERS), history.shop.busy(READY):
        # Until then a consumer looks where it is, and one that is refused for good ends.
        eventually(lambda: history.query(_AT_WORK)[0][0] == CONSUMERS, 60)
        for turn in range(faults):
            wait_for_work(history)
            _one_refusal(history, ways[(first + turn + history.chapter.seed) % len(ways)])


def _one_refusal(history: History, name: str) -> None:
    at = now()
    with WAYS[name](history):
        newborn = history.consumer(drain=False)
        time.sleep(history.dice.uniform(*AWAY_SECONDS))
        _must_be_away(history, name)
    history.blow(at, now() + OVER_IT_SECONDS)
    history.add_fault(name)
    stopped = now()
    newborn.send(signal.SIGTERM)
    if newborn.wait().code == WRONG_USE and name in REFUSED_FOR_GOOD:
        history.count("born meanwhile, and ended as refused for good")
    else:
        expect_a_good_end(history, newborn, stopped)


def _must_be_away(history: History, name: str) -> None:
    try:
        psycopg.connect(history.database_url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return
    history.blame("the rig", f"{name}: PostgreSQL was not away")


# -- the ways --------------------------------------------------------------------------------------


@contextmanager
def _absent(history: History) -> Iterator[None]:
    """No server, no socket."""
    history.world.server.shut_down()
    yield
    history.world.server.start()


@contextmanager
def _recovering(history: History) -> Iterator[None]:
    """It is there, and lets nobody in before it has recovered: its archive is slow."""
    server = history.world.server
    server.shut_down()
    server.launch_as_standby("-c", "restore_command=sleep 4; false")
    yield
    server.shut_down()
    server.launch_as_standby()
    server.promote()
    server.wait_until_up()


@contextmanager
def _too_many(history: History) -> Iterator[None]:
    """All connections are taken by others."""
    server = history.world.server
    server.shut_down()
    server.start("-c", f"max_connections={FEW}", "-c", "autovacuum=off")
    with ExitStack() as taken:
        connect = partial(psycopg.connect, history.database_url, application_name=MINE)
        first = taken.enter_context(connect(autocommit=True))
        while True:
            others = first.execute(_END_OTHERS, [MINE]).rowcount
            try:
                taken.enter_context(connect())
            except psycopg.OperationalError:
                if not others:
                    break
        yield
    server.shut_down()
    server.start()


@contextmanager
def _not_allowed(history: History) -> Iterator[None]:
    """ALLOW_CONNECTIONS false, and whoever was in is out."""
    server, name = history.world.server, name_of(history.database_url)
    server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
    server.end_sessions(name)
    yield
    server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


@contextmanager
def _rejected(history: History) -> Iterator[None]:
    """pg_hba.conf rejects everybody who asks for this database."""
    server, name = history.world.server, name_of(history.database_url)
    rules = server.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local {name} all reject\n{before}")
    server.execute("SELECT pg_reload_conf()")
    eventually(lambda: not server.answers(name))
    server.end_sessions(name)
    yield
    rules.write_text(before)
    server.execute("SELECT pg_reload_conf()")
    eventually(lambda: server.answers(name))


@contextmanager
def _frozen(history: History) -> Iterator[None]:
    """All of its processes stand still: connections hang, and so does who was in."""
    history.world.server.freeze()
    yield
    history.world.server.thaw()


WAYS: dict[str, Callable[[History], AbstractContextManager[None]]] = {
    "absent": _absent,
    "in recovery": _recovering,
    "too many connections": _too_many,
    "connections not allowed": _not_allowed,
    "rejected by pg_hba.conf": _rejected,
    "frozen": _frozen,
}
#: A consumer that starts then is told at once, as it is of a wrong password.
REFUSED_FOR_GOOD = frozenset({"connections not allowed", "rejected by pg_hba.conf"})


# -- in earnest ------------------------------------------------------------------------------------


def outages(history: History, faults: int) -> None:
    """PostgreSQL is gone for more than two minutes, so many times, and nothing is hurried."""
    for _ in range(faults):
        _outage(history, history.world.server)


def _outage(history: History, server: Server) -> None:
    settings = {name: value for name, value in history.settings().items() if name not in IN_EARNEST}
    with living(history, [settings] * CONSUMERS, in_earnest=True):
        with history.shop.busy(READY):
            wait_for_work(history)
            at = now()
            server.shut_down()
            time.sleep(OUTAGE_SECONDS)
            server.start()
        back = now()
        eventually(lambda: history.query(_NOTHING_LEFT)[0][0], RECOVERY_SECONDS_MAX)
    history.blow(at, now())
    history.add_fault(f"of {OUTAGE_SECONDS:g} s")
    history.count("seconds of recovery", number=ceil(now() - back))
