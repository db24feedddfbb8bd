"""SIGSTOP past the lease: others take over, then the stopped consumer goes on.

In half of the rounds the others are in the midst of it by then, and stand still in their turn; in
the other half they have finished, and between the two the tables are written down. What a consumer
that has lost its lease may change afterwards is one thing only: with the provider's acceptance in
hand it moves an effect from open or held to delivered. It starts no call for what it has lost, and
has to say in its log that it has lost it.
"""

from __future__ import annotations

import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.faults import oracle
from tests.faults.storm.exposure import read_journal
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
#: The share of rounds in which they go on while others are at work on what they had.
IN_MIDST = 0.5
OTHERS = 4
#: Moments that come with every job, whatever becomes of it.
SURELY_MET = (
    "begin_effects:before",
    "begin_effects:sent",
    "begin_effects:after",
    "settle_attempts:before",
    "settle_attempts:sent",
)
#: What a person would be shown; of attempts and times nothing is left out.
_EFFECTS = (
    "SELECT effect_key, effect::text, state, provider_message_id FROM outbox.effect AS effect"
)
_ENDED = "SELECT id, effect_key, ended::text FROM outbox.ended_job AS ended"
_LIVE = "SELECT id, effect_key, job::text FROM outbox.job AS job"
_CLAIMED = "SELECT id, claim_version, effect_key FROM outbox.job WHERE claimed_by LIKE %s"
_VERSIONS = "SELECT id, claim_version FROM outbox.job"
_AT_WORK = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE %s AND state <> 'idle'"
_LOST = re.compile(r"job (\d+)(?: \(.*?\))?: (?:lease lost|its claim no longer held)")


def stops(history: History, faults: int) -> None:
    """So many consumers are stopped while they hold a claim, past its lease."""
    rounds = 0
    while history.faults < faults:
        rounds += 1
        assert rounds <= faults + 10, f"only {history.faults} of {faults} were stopped with a claim"
        _round(history, min(STOPPED_AT_ONCE, 2 * (faults - history.faults)))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a consumer holds."""

    job_id: int
    version: int
    effect_key: str


@dataclass(frozen=True, slots=True)
class Stop:
    """A consumer that stands still, since when, and its claims."""

    life: Life
    at: float
    claims: Sequence[Claim]


def _round(history: History, count: int) -> None:
    history.shop.top_up(count * JOBS_EACH)
    in_midst = history.dice.random() < IN_MIDST
    stopped = _stop_some(history, count, _anywhere)
    history.wait_for_leases()
    if in_midst:
        stopped += _resume_in_midst(history, stopped)
    else:
        _resume_afterwards(history, stopped)
    with_claims = sum(bool(stop.claims) for stop in stopped)
    history.faults += with_claims
    history.count("stopped without a claim", number=len(stopped) - with_claims)
    when = "in the midst of" if in_midst else "after"
    history.count(f"went on {when} the others' work", number=with_claims)


Start = Callable[[History, Random], Life]


def _stop_some(history: History, count: int, start: Start) -> list[Stop]:
    """Start so many, all at once, and wait until they stand still; some may end instead."""
    fates = [Random(history.dice.random()) for _ in range(count)]
    with ThreadPoolExecutor(count) as threads:
        stops = list(threads.map(lambda fate: _at_rest(history, start(history, fate)), fates))
    return [stop for stop in stops if stop is not None]


def _anywhere(history: History, dice: Random) -> Life:
    """One that stops at a moment of a job's way, or at any time at all."""
    if dice.randrange(AT_ANY_TIME):
        turn = dice.choice((1, 1, 1, 2, 3))
        return history.consumer(moment=dice.choice(JOB_MOMENTS), turn=turn, act=Act.STOP)
    life = history.consumer()
    time.sleep(dice.uniform(0, LIFE_SECONDS_MAX))
    life.send(signal.SIGSTOP)
    return life


def _with_a_job(history: History, dice: Random) -> Life:
    """One that stops with the first job that it finds."""
    return history.consumer(moment=dice.choice(SURELY_MET), act=Act.STOP)


def _at_rest(history: History, life: Life) -> Stop | None:
    if life.wait_at_rest().ended:
        _expect_a_clean_end(history, life)
        return None
    at = now()
    # What it has sent may still be under way.
    eventually(lambda: not history.query(_AT_WORK, f"%:{life.pid}:%"), 30)
    rows = history.query(_CLAIMED, f"%:{life.pid}:%")
    return Stop(life, at, [Claim(*row) for row in rows])


def _resume_afterwards(history: History, stopped: Sequence[Stop]) -> None:
    """All that they had is finished by others."""
    history.drain()
    before = _tables(history)
    _resume(history, stopped)
    _compare(history, before, _tables(history))


def _resume_in_midst(history: History, stopped: Sequence[Stop]) -> list[Stop]:
    """Others have taken some of what they had, and stand still in their turn; returns those."""
    others = _stop_some(history, OTHERS, _with_a_job)
    _resume(history, stopped)
    history.wait_for_leases()
    _resume(history, others)
    return others


def _resume(history: History, stopped: Sequence[Stop]) -> None:
    """Let them go on, to their ends, and see that they are told what they have lost."""
    # What nobody has taken is still their own, and they may finish that.
    lost = [(stop, _taken(history, stop)) for stop in stopped]
    at = now()
    for stop in stopped:
        history.blow(stop.at, now(), number=stop.life.number)
        stop.life.send(signal.SIGCONT)
    for stop, claims in lost:
        _must_be_told(history, stop, claims, at)


def _taken(history: History, stop: Stop) -> list[Claim]:
    versions = dict(history.query(_VERSIONS))
    return [claim for claim in stop.claims if versions.get(claim.job_id) != claim.version]


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
    for table in ("job", "ended job"):
        for job_id in before[table].keys() | after[table].keys():
            was, is_now = before[table].get(job_id), after[table].get(job_id)
            key = (was or is_now or ())[1]
            if was != is_now and key not in delivered:
                history.blame(key, f"stale write: the {table} was {was}, is {is_now}")


def _accepted_ids(history: History) -> Mapping[str, set[str]]:
    """The ids of the e-mails that the provider has accepted, by key."""
    found: dict[str, set[str]] = defaultdict(set)
    for line in history.provider.record.read_text().splitlines():
        event = oracle._object(line.encode(), "the record")
        if event["event"] == "decided" and event["accepted"]:
            found[event["key"]].add(event["email_id"])
    return found


def _must_be_told(history: History, stop: Stop, lost: Iterable[Claim], at: float) -> None:
    """It ends well, starts no call for what was lost by then, and says that it has lost it."""
    life = stop.life
    _expect_a_clean_end(history, life)
    said = {int(found[1]) for found in _LOST.finditer(life.log.read_text())}
    calls = read_journal(life.journal).calls
    for claim in lost:
        if claim.job_id not in said:
            history.blame(claim.effect_key, f"life {life.number} does not say that it has lost it")
        if any(started > at for started in calls[claim.effect_key, claim.version]):
            history.blame(claim.effect_key, f"life {life.number} calls although it has lost it")
