"""The provider's memory of a key ends while its effect is open.

Each order's first request is accepted and gets no answer; its consumer dies. Nobody looks after it
until the time from which on a repeat might come too late. What is tried before that is replayed;
what comes after is held: never sent blindly a second time. The provider's clock runs ahead by as
much as the library's margin allows.
"""

from __future__ import annotations

import signal
import time

from consumers.email.settings import MEMORY_MARGIN
from tests.faults import oracle
from tests.faults.storm.history import SETTINGS, History
from tests.faults.storm.life import now
from tests.waiting import eventually

WINDOW_SECONDS = 2.5
#: The mail service's options.
OPTIONS = ("--key-window-seconds", f"{WINDOW_SECONDS:g}")
#: The last moment at which a repeat may begin, after the first request began.
LAST_SECONDS = WINDOW_SECONDS * (1 - MEMORY_MARGIN) - float(SETTINGS["EMAIL_TIMEOUT_SECONDS"])
ORDERS = 30
#: The share of them that is accepted before the first consumer dies; on a busy machine a call may
#: come to its deadline before it has left.
ENOUGH = 0.8
#: When the next consumer starts, before that moment: recovering takes about so long.
EARLY_SECONDS_MAX = 0.5
AHEAD_SECONDS = 0.9 * WINDOW_SECONDS * MEMORY_MARGIN


def lapses(history: History, faults: int) -> None:
    """The keys of so many orders lapse, at least, before they are tried again."""
    history.may_hold = True
    history.own_settings = {
        "EMAIL_KEY_WINDOW_SECONDS": f"{WINDOW_SECONDS:g}",
        "EMAIL_CONCURRENCY": str(ORDERS),
    }
    for _ in range(faults):
        _round(history)
        if history.faults >= faults:
            return
    history.blame("the rig", f"only {history.faults} of {faults} keys lapsed")


def _round(history: History) -> None:
    first = history.shop.placed + history.shop.rolled_back + 1
    keys = [oracle.KEY.format(number) for number in range(first, first + 2 * ORDERS)]
    history.provider.plan([{"key": key, "fault": "stall"} for key in keys])
    placed, accepted = history.shop.placed, _accepted(history)
    history.shop.top_up(ORDERS)
    enough = ENOUGH * (history.shop.placed - placed)
    begun = now()
    life = history.consumer(drain=False)
    eventually(lambda: _accepted(history) - accepted >= enough, 30)
    life.send(signal.SIGKILL)
    life.wait()
    history.blow(now(), number=life.number)
    history.provider.advance_clock(AHEAD_SECONDS)
    history.wait_for_leases()
    early = history.dice.uniform(0, EARLY_SECONDS_MAX)
    time.sleep(max(0.0, begun + LAST_SECONDS - early - now()))
    before = _held(history)
    history.drain()
    history.provider.advance_clock(-AHEAD_SECONDS)
    lapsed = _held(history) - before
    history.faults += lapsed
    history.count("replayed in time", number=ORDERS - lapsed)


def _accepted(history: History) -> int:
    return sum(seen.accepted for seen in oracle.read_record(history.provider.record).values())


def _held(history: History) -> int:
    query = "SELECT count(*) FROM outbox.effect WHERE state = 'held'"
    return int(history.query(query)[0][0])
