"""All at once: kills, cut connections, shutdowns, and a provider that misbehaves by itself."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random

from tests.faults.proxy import Way, http_proxy, through
from tests.faults.storm import cuts
from tests.faults.storm.history import History
from tests.faults.storm.kills import moment
from tests.faults.storm.life import now

#: Of the mail service: a tenth of all requests meets one of these.
OPTIONS = (
    "--faults",
    (
        "drop_after_accept=0.02,reset_after_accept=0.01,500_after=0.01,stall=0.01,garbage_200=0.005,"
        "truncated_200=0.005,drop_before=0.01,502_before=0.01,503_before=0.01,429=0.01"
    ),
)
SIDE_BY_SIDE = 3
READY = 12
#: Who has not come to its moment by then dies where it is; the queue never runs dry here.
LIFE_SECONDS_MAX = 2.0
#: So many deaths come between two shutdowns.
DEATHS_PER_SHUTDOWN = 15
CUT_DATABASE, CUT_PROVIDER = 0.02, 0.05
#: How long after a cut its consumer is still getting over it.
OVER_IT_SECONDS = 0.5
#: Silence is left out: who is killed as often as here has no time for it.
WAYS = {Way.RESET: 2, Way.HALF: 2, Way.DELAY: 1}


def mix(history: History, faults: int) -> None:
    """So many faults of all these kinds, those of the provider not counted."""
    database = cuts.database_proxy(history, cuts.cutting(CUT_DATABASE, WAYS))
    chance = cuts.diced(history, cuts.cutting(CUT_PROVIDER, WAYS))
    provider = history.until_drained(http_proxy(history.provider.url, chance))
    history.provider = replace(history.provider, url=f"http://127.0.0.1:{provider.open()}")
    settings = history.settings(
        OUTBOX_DATABASE_URL=through(history.database_url, database.open("consumers"))
    )

    def missing() -> int:
        return faults - history.faults - len(database.struck) - len(provider.struck)

    with history.shop.busy(READY), ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        while missing() > 0:
            count = min(DEATHS_PER_SHUTDOWN, missing())
            fates = [Random(history.dice.random()) for _ in range(count)]
            deaths = threads.map(lambda fate: _let_one_die(history, settings, fate), fates)
            time.sleep(history.dice.uniform(0, 1))
            _shut_down(history)
            list(deaths)
    for name, proxy in (("database", database), ("provider", provider)):
        proxy.decide = cuts.at_peace
        history.add_fault(f"{name} cut", len(proxy.struck))
    for struck in database.struck:
        history.blow(struck.at, struck.at + struck.fault.seconds + OVER_IT_SECONDS)


def _let_one_die(history: History, settings: Mapping[str, str], dice: Random) -> None:
    name, turn = moment(dice)
    patience = {"outbox.connection.STATEMENT_SECONDS_MAX": cuts.STATEMENT_SECONDS}
    life = history.consumer(settings, moment=name, turn=turn, overrides=patience)
    if not life.ends_within(LIFE_SECONDS_MAX):
        life.send(signal.SIGKILL)
    if life.wait().killed:
        history.blow(now(), number=life.number)
        history.add_fault("kills")
    elif life.code != 0:
        history.blame(f"life {life.number}", f"ended with {life.code or life.signal}")


def _shut_down(history: History) -> None:
    at = now()
    history.world.server.shut_down()
    history.world.server.start()
    history.blow(at, now() + OVER_IT_SECONDS)
    history.add_fault("shutdowns")
