"""SIGSTOP past the lease: another consumer finishes, then the stopped one goes on.

Between the two the tables are written down. What a consumer that has lost its lease may change
afterwards is one thing only: with the provider's acceptance in hand it moves an effect from open or
held to delivered. And it has to say in its log that it lost each job that it held.
"""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.faults import oracle
from tests.faults.storm.history import History
from tests.faults.storm.life import Act, now
from tests.faults.storm.lives import Life
from tests.faults.storm.moments import JOB_MOMENTS
from tests.waiting import eventually

#: Stopped side by side, so that they share the wait for their leases.
STOPPED_AT_ONCE = 12
#: Jobs for each of them.
JOBS_EACH = 4
#: One in so many is stopped at any time at all, in the middle of whatever it does.
AT_ANY_TIME = 4
LIFE_SECONDS_MAX = 0.25
#: What a person would be shown; of attempts and times nothing is left out.
_EFFECTS = "SELECT effect_key, effect::text, state, provider_message_id FROM outbox.effect AS effect"
_ENDED = "SELECT id, ended::text FROM outbox.ended_job AS ended"
_LIVE = "SELECT id, effect_key, job::text FROM outbox.job AS job"
_CLAIMED = "SELECT id FROM outbox.job WHERE claimed_by LIKE %s"
_AT_WORK = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND state <> 'idle'"
_LOST = re.compile(r"job (\d+)(?: \(.*?\))?: (?:lease lost|its claim no longer held)")


def stops(history: History, faults: int) -> None:
    """So many consumers are stopped while they hold a claim, past its lease."""
    rounds = 0
    while history.faults < faults:
        rounds += 1
        if rounds > faults + 10:
            history.blame("the rig", f"only {history.faults} of {faults} were stopped with a claim")
            return
        _round(history)


@dataclass(slots=True)
class Stop:
    """A consumer that stands still, since when, and the jobs that it holds."""

    life: Life
    at: float
    jobs: list[int]


def _round(history: History) -> None:
    history.shop.top_up(STOPPED_AT_ONCE * JOBS_EACH)
    fates = [Random(history.dice.random()) for _ in range(STOPPED_AT_ONCE)]
    with ThreadPoolExecutor(STOPPED_AT_ONCE) as threads:
        found = list(threads.map(lambda fate: _stop(history, fate), fates))
    stopped = [stop for stop in found if stop is not None]
    history.wait_for_leases()
    history.drain()
    before = _tables(history)
    for stop in stopped:
        history.blow(stop.at, now(), number=stop.life.number)
        stop.life.send(signal.SIGCONT)
    for stop in stopped:
        _expect_a_clean_end(history, stop.life)
        _must_say_so(history, stop)
    _compare(history, before, _tables(history))
    history.count("stopped", number=len(stopped))
    history.faults += sum(bool(stop.jobs) for stop in stopped)


def _stop(history: History, dice: Random) -> Stop | None:
    """One consumer, to the point at which it stands still; ``None`` if it came to its end first."""
    if dice.randrange(AT_ANY_TIME):
        turn = dice.choice((1, 1, 1, 2, 3))
        life = history.consumer(moment=dice.choice(JOB_MOMENTS), turn=turn, act=Act.STOP)
    else:
        life = history.consumer()
        time.sleep(dice.uniform(0, LIFE_SECONDS_MAX))
        life.send(signal.SIGSTOP)
    if life.wait_at_rest().ended:
        _expect_a_clean_end(history, life)
        return None
    at = now()
    # What it has sent may still be under way.
    eventually(lambda: not history.query(_AT_WORK, f"%:{life.pid}:%"), 30)
    jobs = [job_id for (job_id,) in history.query(_CLAIMED, f"%:{life.pid}:%")]
    return Stop(life, at, jobs)


def _expect_a_clean_end(history: History, life: Life) -> None:
    if life.wait().code != 0:
        history.blame(f"life {life.number}", f"ended with {life.code or life.signal}")


def _tables(history: History) -> Mapping[str, dict[Any, tuple[Any, ...]]]:
    queries = {"effect": _EFFECTS, "ended job": _ENDED, "job": _LIVE}
    return {name: {row[0]: row for row in history.query(query)} for name, query in queries.items()}


def _compare(
    history: History,
    before: Mapping[str, dict[Any, tuple[Any, ...]]],
    after: Mapping[str, dict[Any, tuple[Any, ...]]],
) -> None:
    """Blame each row that is another one now, and isn't an effect that was delivered after all."""
    delivered = set()
    ids = _accepted_ids(history)
    for key, row in after["effect"].items():
        old = before["effect"].get(key)
        if row == old:
            continue
        if old and old[2] in {"open", "held"} and row[2] == "delivered" and row[3] in ids[key]:
            delivered.add(key)
            history.count("delivered by a late acceptance")
        else:
            history.blame(key, f"stale write: the effect was {old and old[1]}, is {row[1]}")
    for job_id, row in before["job"].items():
        if after["job"].get(job_id) != row and row[1] not in delivered:
            history.blame(row[1], f"stale write: the job was {row[2]}")
    if after["ended job"] != before["ended job"]:
        new = after["ended job"].keys() ^ before["ended job"].keys()
        history.blame("ended jobs", f"stale write: {sorted(new)}")


def _accepted_ids(history: History) -> Mapping[str, set[str]]:
    """The ids of the e-mails that the provider has accepted, by key."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in history.provider.record.read_text().splitlines():
        event = oracle._object(line.encode(), "the record")
        if event["event"] == "decided" and event["accepted"]:
            found[event["key"]].add(event["email_id"])
    return found


def _must_say_so(history: History, stop: Stop) -> None:
    said = {int(found[1]) for found in _LOST.finditer(stop.life.log.read_text())}
    for job_id in set(stop.jobs) - said:
        history.blame(f"life {stop.life.number}", f"does not say that it has lost job {job_id}")
