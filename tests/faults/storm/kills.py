"""SIGKILL: consumers that die at every moment of their lives, several at a time."""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from tests.faults.storm.history import History
from tests.faults.storm.life import WALL_CLOCKS, now
from tests.faults.storm.moments import JOB_MOMENTS, OTHER_MOMENTS

#: Consumers that live, and die, side by side.
SIDE_BY_SIDE = 3
#: Jobs that wait for a consumer when it is born.
READY = 8
#: One in so many dies at any time at all, not at a moment with a name.
AT_ANY_TIME = 5
LIFE_SECONDS_MAX = 0.25


def kills(history: History, faults: int) -> None:
    """Consumers are killed, so many, while orders come in."""
    _kill(history, faults, lambda _: {})


def repeats(history: History, faults: int) -> None:
    """The same where what is unknown is sent again to a provider that can't tell.

    An order may be sent twice then, but only where a consumer died, or heard nothing, after its
    intent was committed and before its answer was settled.
    """
    history.own_settings = {"EMAIL_UNKNOWN": "repeat"}
    history.may_repeat = True
    _kill(history, faults, lambda _: {})


def kills_under_wrong_clocks(history: History, faults: int) -> None:
    """The same for consumers whose wall clocks are hours off, stand still, or jump.

    Leases and schedules are the database's and the boot clock's: nothing may change.
    """
    _kill(history, faults, lambda dice: {"wall_clock": dice.choice(list(WALL_CLOCKS))})


def _kill(history: History, faults: int, how: Any) -> None:
    # The dice are thrown beforehand: whichever thread comes first, a seed means the same deaths.
    fates = [Random(history.dice.random()) for _ in range(2 * faults + 10)]

    def one(fate: Random) -> None:
        if history.faults < faults:
            _one_death(history, fate, how(fate))

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        list(threads.map(one, fates))
    if history.faults < faults:
        history.blame("the rig", f"only {history.faults} of {faults} consumers came to their end")


def _one_death(history: History, dice: Random, how: dict[str, Any]) -> None:
    history.shop.top_up(READY)
    if dice.randrange(AT_ANY_TIME) == 0:
        _at_any_time(history, dice, how)
        return
    name, turn = moment(dice)
    life = history.consumer(moment=name, turn=turn, **how).wait()
    if life.killed:
        history.blow(now(), number=life.number)
        history.add_fault(f"at {name}")
    elif life.code == 0:
        history.count("lived")
    else:
        history.blame(f"life {life.number}", f"ended with {life.code or life.signal}")


def _at_any_time(history: History, dice: Random, how: dict[str, Any]) -> None:
    life = history.consumer(drain=False, **how)
    time.sleep(dice.uniform(0, LIFE_SECONDS_MAX))
    life.send(signal.SIGKILL)
    life.wait()
    history.blow(now(), number=life.number)
    history.add_fault("at any time")


def moment(dice: Random) -> tuple[str, int]:
    """A moment to die at, and which time; mostly on a job's way, where the outcome hangs on it."""
    if dice.random() < 0.75:
        return dice.choice(JOB_MOMENTS), dice.choice((1, 1, 1, 2, 3, 5, 8))
    return dice.choice(OTHER_MOMENTS), dice.choice((1, 1, 1, 2))
