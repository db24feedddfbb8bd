"""Consumers that live and yet can't keep their leases: a blocked event loop, failing heartbeats."""

from __future__ import annotations

import time
from random import Random

from tests.faults.storm.exposure import read_journal
from tests.faults.storm.history import SETTINGS, History
from tests.faults.storm.life import Act
from tests.faults.storm.moments import JOB_MOMENTS
from tests.faults.storm.shutdowns import living

LEASE_SECONDS = float(SETTINGS["OUTBOX_LEASE_SECONDS"])
HEARTBEAT_SECONDS = float(SETTINGS["OUTBOX_HEARTBEAT_SECONDS"])
#: Blocked side by side, beside one that nothing happens to.
BLOCKED_AT_ONCE = 5
JOBS_EACH = 5
BLOCK_SECONDS = 1.3 * LEASE_SECONDS
#: So many heartbeats in a row fail: for longer than a lease.
HEARTBEATS = int(1.5 * LEASE_SECONDS / HEARTBEAT_SECONDS)
FAILING_AT_ONCE = 4


def blocks(history: History, faults: int) -> None:
    """So many consumers block their own event loop past their leases, in mid-work."""
    for _ in range(2 * faults):
        history.shop.top_up(BLOCKED_AT_ONCE * JOBS_EACH)
        lives = [history.consumer()]
        for _ in range(BLOCKED_AT_ONCE):
            dice = Random(history.dice.random())
            moment, turn = dice.choice(JOB_MOMENTS), dice.choice((1, 1, 2, 3))
            lives.append(
                history.consumer(moment=moment, turn=turn, act=Act.BLOCK, seconds=BLOCK_SECONDS)
            )
        for life in lives:
            if life.wait().code != 0:
                history.blame(f"life {life.number}", f"ended with {life.code or life.signal}")
            for at, _ in read_journal(life.journal).struck:
                history.blow(at, at + BLOCK_SECONDS, number=life.number)
                history.faults += 1
            history.count("leases lost", number=life.log.read_text().count("lost"))
        if history.faults >= faults:
            return
    history.blame("the rig", f"only {history.faults} of {faults} came to their moment")


def heartbeats(history: History, faults: int) -> None:
    """So many consumers can't write a heartbeat for longer than a lease, while calls are slow."""
    while history.faults < faults:
        settings = [history.settings()] * FAILING_AT_ONCE
        with (
            living(history, settings, heartbeats_fail=HEARTBEATS) as lives,
            history.shop.busy(FAILING_AT_ONCE * JOBS_EACH),
        ):
            time.sleep((HEARTBEATS + 5) * HEARTBEAT_SECONDS)
        for life in lives:
            struck = [at for at, _ in read_journal(life.journal).struck]
            if len(struck) * HEARTBEAT_SECONDS > LEASE_SECONDS:
                history.faults += 1
                history.blow(struck[0], struck[-1] + LEASE_SECONDS, number=life.number)
            history.count("heartbeats failed", number=len(struck))
