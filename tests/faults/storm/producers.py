"""Producers that die while they place orders: before, during and after each statement of theirs.

What was committed is the database's to say (the oracle reads the shop's table), and each order that
is there has its e-mail, each that isn't has none. A shop that was told that its order is placed
finds it there.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from random import Random
from signal import SIGKILL

from tests.faults.storm.history import History
from tests.faults.storm.lives import Life
from tests.faults.storm.producer import MOMENTS, PLACED
from tests.faults.storm.shutdowns import living

CONSUMERS = 2
SIDE_BY_SIDE = 3
#: One in so many dies at any time at all.
AT_ANY_TIME = 4
LIFE_SECONDS_MAX = 0.1
#: The order at which a producer dies.
TURNS = (1, 1, 2, 3, 5)
#: Each producer has numbers of its own.
ORDERS_EACH = 1_000


def producers(history: History, faults: int) -> None:
    """So many producers are killed, while consumers are at work on what was placed."""
    fates = [Random(history.dice.random()) for _ in range(2 * faults + 10)]
    numbers = count(1)

    def one(fate: Random) -> None:
        if history.faults < faults:
            _one_death(history, fate, next(numbers) * ORDERS_EACH)

    with living(history, [history.settings()] * CONSUMERS):
        with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
            list(threads.map(one, fates))
        _all_that_was_told_is_there(history)
    if history.faults < faults:
        history.blame("the rig", f"only {history.faults} of {faults} producers came to their end")


def _one_death(history: History, dice: Random, first: int) -> None:
    if dice.randrange(AT_ANY_TIME) == 0:
        life = _producer(history, first, "never", 1)
        life.wait_for_birth()
        time.sleep(dice.uniform(0, LIFE_SECONDS_MAX))
        life.send(SIGKILL)
        name = "at any time"
    else:
        moment, turn = dice.choice(MOMENTS), dice.choice(TURNS)
        life = _producer(history, first, moment, turn)
        name = f"at {moment}"
    if life.wait().killed:
        history.add_fault(name)
    else:
        history.blame(f"producer {first}", f"ended with {life.code or life.signal}")


def _producer(history: History, first: int, moment: str, turn: int) -> Life:
    words = [str(first), str(first + ORDERS_EACH - 1), moment, str(turn)]
    settings = {"OUTBOX_DATABASE_URL": history.database_url}
    output = _notes(history.directory, first)
    return history.world.nursery.program(history.directory, "producer", words, output, settings)


def _notes(directory: Path, first: int) -> Path:
    return directory / f"producer-{first}.placed"


def _all_that_was_told_is_there(history: History) -> None:
    there = {row[0] for row in history.query("SELECT id FROM shop.orders")}
    told = 0
    for path in history.directory.glob("producer-*.placed"):
        for line in path.read_text().splitlines():
            word, _, number = line.partition(" ")
            told += word == PLACED
            if word == PLACED and int(number) not in there:
                history.blame(f"email-order-{number}", "placed, a shop was told, and is not there")
    history.count("orders that a shop was told of", number=told)
    history.count("orders placed unheard", number=len(there) - told)
    asked = {row[0] for row in history.query(_ASKED)}
    for number in there - asked:
        history.blame(f"email-order-{number}", "committed without its job")
    for number in asked - there:
        history.blame(f"email-order-{number}", "a job without its order")


_ASKED = """
    SELECT DISTINCT substring(effect_key FROM '[0-9]+$')::bigint FROM (
        SELECT effect_key FROM outbox.job UNION ALL SELECT effect_key FROM outbox.effect
        UNION ALL SELECT effect_key FROM outbox.ended_job
    ) AS asked
"""
