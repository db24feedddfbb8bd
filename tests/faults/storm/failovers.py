"""Connections that turn read-only, as those of a primary that has been demoted.

``failovers``, in turn: sessions live on and may write no more; the same, and all of them end; the
server comes back as a standby, which can't write at all, and is promoted after a while.

``promotions``: two servers, of which one follows the other, synchronously, so that what was
committed is on both; the first dies, the second is promoted, and everybody's URL names both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib.parse import quote

from tests.faults.storm.history import History
from tests.faults.storm.life import now
from tests.faults.storm.refusals import CONSUMERS
from tests.faults.storm.server import Server, name_of
from tests.faults.storm.shutdowns import living, wait_for_work

READY = 60
CONCURRENCY = "30"
#: Shorter and longer than a lease.
READ_ONLY_SECONDS = (0.2, 1.2)
#: As the server's log has it: SQLSTATE 25006.
READ_ONLY = "in a read-only transaction"
OVER_IT_SECONDS = 0.5
#: How long there is a standby and no primary, at most; a lease is 1 s.
NOBODY_SECONDS_MAX = 1.5


def failovers(history: History, faults: int) -> None:
    """So many times nothing can be written, and later it can."""
    ways = list(WAYS)
    if history.chapter.seed % 2:
        # Then each statement comes in a transaction of its own making, which a standby refuses.
        name = name_of(history.database_url)
        history.world.server.execute(
            f"ALTER DATABASE {name} SET default_transaction_isolation = 'repeatable read'"
        )
    settings = [history.settings(EMAIL_CONCURRENCY=CONCURRENCY)] * CONSUMERS
    with living(history, settings), history.shop.busy(READY):
        for turn in range(faults):
            wait_for_work(history)
            name = ways[(history.chapter.seed + turn) % len(ways)]
            at = now()
            _, log_end = history.world.server.complaints()
            WAYS[name](history, history.dice.uniform(*READ_ONLY_SECONDS))
            refused = history.world.server.complaints(log_end)[0].count(READ_ONLY)
            history.count(f"{name}: statements refused", number=refused)
            history.blow(at, now() + OVER_IT_SECONDS)
            history.add_fault(name)


def _in_the_session(history: History, seconds: float) -> None:
    server = history.world.server
    _set_read_only(server, "on")
    time.sleep(seconds)
    _set_read_only(server, "off")


def _and_ended(history: History, seconds: float) -> None:
    server = history.world.server
    _set_read_only(server, "on")
    server.end_sessions(name_of(history.database_url))
    time.sleep(seconds)
    _set_read_only(server, "off")


def _set_read_only(server: Server, value: str) -> None:
    server.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
    server.execute("SELECT pg_reload_conf()")


def _as_a_standby(history: History, seconds: float) -> None:
    server = history.world.server
    server.shut_down()
    server.launch_as_standby()
    server.wait_until_up()
    time.sleep(seconds)
    server.promote()


WAYS: dict[str, Callable[[History, float], None]] = {
    "read-only, sessions live on": _in_the_session,
    "read-only, sessions ended": _and_ended,
    "restarted as a standby, promoted later": _as_a_standby,
}


def promotions(history: History, faults: int) -> None:
    """So many times the primary dies and its standby is promoted; an even number."""
    primary = history.world.server
    standby = primary.other("standby")
    history.database_url = _of_both(history.database_url, standby)
    history.shop.database_url = history.database_url
    settings = [history.settings(EMAIL_CONCURRENCY=CONCURRENCY)] * CONSUMERS
    with living(history, settings), history.shop.busy(READY):
        # The storm's own server is the primary again in the end.
        for _ in range(faults + faults % 2):
            standby.follow(primary)
            wait_for_work(history)
            at = now()
            primary.shut_down()
            time.sleep(history.dice.uniform(0, NOBODY_SECONDS_MAX))
            standby.promote()
            history.blow(at, now() + OVER_IT_SECONDS)
            history.faults += 1
            primary, standby = standby, primary


def _of_both(url: str, standby: Server) -> str:
    more = f",{quote(str(standby.sockets))}&target_session_attrs=read-write"
    return f"{url}{more}"
