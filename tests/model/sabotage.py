"""What happens when one guard of the protocol is missing: each must be found by the exploration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tests.model.promises import PROMISES
from tests.model.state import Budget, World

#: They forbid the missing guard itself; without them the damage that it does has to be found.
DIRECT = frozenset(
    {
        "a stale claim changes nothing",
        "a claim that holds is its holder's alone",
        "no call without a lease",
    }
)
DAMAGE = tuple(promise for promise in PROMISES if promise not in DIRECT)


@dataclass(frozen=True)
class Sabotage:
    """A world with something missing, and the promise that falls first.

    ``on_code``: the missing part is the shipped code's own (not the provider's), so that the trace,
    replayed on it, must come to a point where the two part ways.
    """

    world: World
    promise: str
    promises: tuple[str, ...] = DAMAGE
    on_code: bool = True

    def __str__(self) -> str:
        return f"without {self.world.without}: {self.promise}"


def _one_job(without: str, budget: Budget, *, replays: bool = False) -> World:
    return World((0,), 2, replays=replays, without=without, budget=budget)


def _two_jobs(without: str, budget: Budget, *, replays: bool = False) -> World:
    return World((0, 0), 2, replays=replays, without=without, budget=budget)


def _one_process(without: str, budget: Budget) -> World:
    return World((0,), 2, replays=False, one_process=True, without=without, budget=budget)


_STALE = "a stale claim changes nothing"
_TWICE = "one key, one e-mail"
_HELD = "held only where a request may have left"

SABOTAGES = (
    Sabotage(_one_job("fence on settle", Budget(2)), _STALE, PROMISES),
    Sabotage(_one_job("fence on settle", Budget(2)), _HELD),
    Sabotage(_one_process("claim_version on settle", Budget(3)), _STALE, PROMISES),
    Sabotage(_one_process("claim_version on begin", Budget(2)), _HELD),
    Sabotage(_one_process("claim_version on reopen", Budget(3)), _HELD),
    Sabotage(
        replace(_one_job("claimed_by on settle", Budget(1, lost_commits=1)), expires=True),
        _STALE,
        PROMISES,
    ),
    Sabotage(_one_job("claimed_by on begin", Budget(1, lost_commits=1)), _STALE, PROMISES),
    Sabotage(_one_job("claimed_by in the fence", Budget(1, lost_commits=1)), _TWICE),
    Sabotage(_one_job("lease on begin", Budget(2)), _STALE, PROMISES),
    Sabotage(_one_job("lease on reopen", Budget(2), replays=True), _STALE, PROMISES),
    Sabotage(
        replace(_two_jobs("open state on reopen", Budget(3), replays=True), max_attempts=1),
        "what is held waits for a person",
        ("what is held waits for a person",),
    ),
    Sabotage(_two_jobs("open state on reopen", Budget(2), replays=True), "settled is final"),
    Sabotage(_one_job("fence on begin", Budget(2)), _STALE, PROMISES),
    Sabotage(_one_job("fence on begin", Budget(2)), _HELD),
    Sabotage(_one_job("fence on the heartbeat", Budget(2)), _STALE, PROMISES),
    Sabotage(_one_job("intent before the call", Budget(2)), _TWICE),
    Sabotage(_one_job("attempt cap", Budget(4)), "no more tries than allowed"),
    Sabotage(_one_job("memory window", Budget(1, ticks=2), replays=True), _TWICE),
    Sabotage(_two_jobs("requests_seen", Budget(2)), "no surplus request"),
    Sabotage(_two_jobs("requests_seen", Budget(1)), _TWICE, (_TWICE,)),
    Sabotage(
        _one_job("lease check before the call", Budget(2)), "no call without a lease", PROMISES
    ),
    Sabotage(_one_job("lease check before the call", Budget(1, ticks=2), replays=True), _TWICE),
    Sabotage(_two_jobs("at_work_elsewhere", Budget(1)), _HELD),
    Sabotage(
        _one_job("check before a cancel", Budget(1, people=1)),
        "dead and cancelled are surely not sent",
    ),
    Sabotage(
        _two_jobs("record of the done", Budget(2), replays=True), "every job is accounted for"
    ),
    Sabotage(_two_jobs("open hold", Budget(2)), "held while something is open"),
    # Nobody but a claim takes a lapsed lease; a reaper of its own would be written like this.
    Sabotage(_one_job("recheck by the reaper", Budget(2)), _HELD, on_code=False),
    Sabotage(_one_job("one key for all attempts", Budget(2), replays=True), _TWICE, on_code=False),
    Sabotage(_one_job("keys at the provider", Budget(2), replays=True), _TWICE, on_code=False),
)
