"""What must stay true: promises about each state, and about each step from one to the next."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.spec import holds, owns
from tests.model.state import GONE, Action, Consumer, Effect, State, World

#: Each says whether a state, or a step, breaks a promise.
OfState = Callable[[World, State], bool]
OfStep = Callable[[World, State, Action, State], bool]


# -- of a state ------------------------------------------------------------------------------------


def _two_emails(w: World, s: State) -> bool:
    """With EMAIL_UNKNOWN=repeat a possible earlier send is repeated: the documented window."""
    for mail, seen in zip(s.mails, s.witnesses, strict=True):
        if mail.accepted > 1 + seen.excuses and not (w.repeat and seen.doubt):
            return True
    return False


def _sent_though_ended(w: World, s: State) -> bool:
    """A person's word excuses it: after send-again the ledger speaks of the tries since then."""
    for j, job in enumerate(s.jobs):
        if job.place in {"dead", "cancelled"} and job.reason != "given_up":
            key = w.keys[j]
            if j in s.mails[key].senders and not s.witnesses[key].excuses:
                return True
    return False


def _delivered_but_not_accepted(w: World, s: State) -> bool:
    for effect, mail, seen in zip(s.effects, s.mails, s.witnesses, strict=True):
        delivered = effect is not None and effect.state == "delivered"
        if delivered and not (mail.accepted or seen.vouched):
            return True
    return False


def _job_unaccounted(w: World, s: State) -> bool:
    """A job without a row is known by the delivered effect that names it, no other job is."""
    for j, job in enumerate(s.jobs):
        if job.place in {"done", "duplicate"}:
            effect = s.effects[w.keys[j]]
            if effect is None or effect.state != "delivered":
                return True
            if (effect.job == j) != (job.place == "done"):
                return True
    return False


def _surplus_request(w: World, s: State) -> bool:
    for effect, seen in zip(s.effects, s.witnesses, strict=True):
        if effect is not None and effect.sent > 1 + seen.faults:
            return True
    return False


def _held_without_reason(w: World, s: State) -> bool:
    for effect, seen in zip(s.effects, s.witnesses, strict=True):
        if effect is not None and effect.state == "held" and not seen.doubt:
            return True
    return False


def _held_with_nothing_open(w: World, s: State) -> bool:
    for effect in s.effects:
        if effect is not None and effect.state == "held" and effect.age is None:
            return True
    return False


OF_STATES: dict[str, OfState] = {
    "one key, one e-mail": _two_emails,
    "dead and cancelled are surely not sent": _sent_though_ended,
    "delivered was accepted": _delivered_but_not_accepted,
    "every job is accounted for": _job_unaccounted,
    "no surplus request": _surplus_request,
    "held only where a request may have left": _held_without_reason,
    "held while something is open": _held_with_nothing_open,
}


# -- of a step -------------------------------------------------------------------------------------


def _stale_claim_writes(w: World, before: State, action: Action, after: State) -> bool:
    """With the one exception: an acceptance in hand moves an effect from open or held."""
    me = _actor(before, action)
    if me is None or before[:2] == after[:2] or action[0] == "fail_over":
        return False
    fence = owns if me.phase == "settle" else holds
    if fence(World(w.keys), before, int(action[1]), me):
        return False
    rows = [[job._replace(by=GONE) for job in s.jobs] for s in (before, after)]
    accepted = me.decision is not None and me.decision.state == "delivered"
    return rows[0] != rows[1] or (before.effects != after.effects and not accepted)


def _holder_robbed(w: World, before: State, action: Action, after: State) -> bool:
    if before.jobs == after.jobs or action[0] in {"lapse", "fail_over"}:
        return False
    settles = action[1] if action[0] in {"settle", "settle_lost"} else None
    for old, new in zip(before.jobs, after.jobs, strict=True):
        if old.holds and old.by != settles and (old.version, True) != (new.version, new.holds):
            return True
    return False


def _settled_undone(w: World, before: State, action: Action, after: State) -> bool:
    if before[:2] == after[:2]:
        return False
    by_retry = action[0] == "retry"
    ended = {"done", "duplicate"} if by_retry else {"done", "duplicate", "dead", "cancelled"}
    closed = {"delivered"} if by_retry else {"delivered", "rejected", "given_up"}
    for old, new in zip(before.jobs, after.jobs, strict=True):
        if old.place in ended and old != new:
            return True
    for row, now in zip(before.effects, after.effects, strict=True):
        if row is not None and row.state in closed and _differs(row, now):
            return True
    return False


def _differs(row: Effect, now: Effect | None) -> bool:
    """In more than its age, which grows by itself."""
    return now is None or row._replace(age=now.age) != now


def _other_bytes(w: World, before: State, action: Action, after: State) -> bool:
    me = _actor(before, action)
    if me is None or action[0] != "arrive":
        return False
    key = w.keys[me.job]
    effect, known = before.effects[key], before.mails[key].remembers
    current = effect is not None and effect.sent == me.sent
    # A person who sends again what was given up has it rendered anew, under the same key.
    excused = before.witnesses[key].excuses
    return current and known is not None and known[0] != me.body and not excused


def _tried_too_often(w: World, before: State, action: Action, after: State) -> bool:
    me = _actor(after, action)
    return me is not None and me.phase == "begun" and me.attempts > w.max_attempts


def _tried_though_held(w: World, before: State, action: Action, after: State) -> bool:
    me = _actor(after, action)
    if me is None or me.phase != "begun" or action[0] not in {"begin", "reopen"}:
        return False
    effect = after.effects[w.keys[me.job]]
    return effect is not None and effect.state == "held"


def _call_without_lease(w: World, before: State, action: Action, after: State) -> bool:
    me = _actor(before, action)
    if me is None or action[0] not in {"leave", "stop_after_check"}:
        return False
    return not holds(World(w.keys), before, int(action[1]), me)


def _actor(s: State, action: Action) -> Consumer | None:
    """The consumer whose step it is, if it has a claim."""
    if action[0] in AROUND or len(action) < 2:
        return None
    return s.consumers[int(action[1])]


#: Steps that no consumer takes.
AROUND = frozenset(
    {
        "promote", "release", "lapse", "expire", "tick", "arrive_late", "forget",
        "cancel", "retry", "resolve", "reaper_looks", "reaper_frees",
    }
)  # fmt: skip

OF_STEPS: dict[str, OfStep] = {
    "a stale claim changes nothing": _stale_claim_writes,
    "a claim that holds is its holder's alone": _holder_robbed,
    "settled is final": _settled_undone,
    "a repeat carries the same bytes": _other_bytes,
    "no more tries than allowed": _tried_too_often,
    "what is held waits for a person": _tried_though_held,
    "no call without a lease": _call_without_lease,
}
PROMISES = (*OF_STATES, *OF_STEPS)
