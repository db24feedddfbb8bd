"""The protocol as a small explicit-state spec: each atomic step of the shipped code, by hand.

What a statement does is written here once more in Python, with the statement's name beside it; what
the code decides between two statements is asked of the shipped decision tables (``tables``). A
consumer here is a process that works on one job at a time. What goes on around it (time, the
provider, people) is in ``surroundings``, what must stay true in ``promises``.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import surroundings, tables
from tests.model.state import LIVE, Action, Consumer, Effect, Job, State, World

Step = tuple[Action, State]


def steps(w: World, s: State) -> Iterator[Step]:
    """Yield everything that may happen next, with the state that it leads to."""
    for c, me in enumerate(s.consumers):
        if me is None:
            yield from _claims(w, s, c)
        else:
            yield from PHASES[me.phase](w, s, c, me)
            yield from _interrupted(w, s, c, me)
    yield from surroundings.steps(w, s)


def owns(w: World, s: State, c: int, me: Consumer) -> bool:
    """Say whether a claim is still the job's: the fence, ``(id, claim_version, claimed_by)``."""
    job = s.jobs[me.job]
    nameless = {"claimed_by in the fence", f"claimed_by on {me.phase}"}
    named = job.by == c or w.one_process or w.without in nameless
    current = job.version == me.version or w.without == f"claim_version on {me.phase}"
    return job.place == "claimed" and current and named


def holds(w: World, s: State, c: int, me: Consumer) -> bool:
    """Say whether a claim holds: it is still the job's, and its lease has not run out."""
    lease = s.jobs[me.job].holds or w.without == f"lease on {me.phase}"
    return owns(w, s, c, me) and lease


def _claims(w: World, s: State, c: int) -> Iterator[Step]:
    """claim_jobs, claim_crashed_job."""
    for j, job in enumerate(s.jobs):
        if job.place == "ready" or (job.place == "claimed" and not job.holds):
            name = "claim" if job.place == "ready" else "claim_crashed"
            version, attempts = job.version + 1, job.attempts + 1
            claimed = s.with_job(
                j, Job("claimed", version, c, holds=True, attempts=attempts, expired=job.expired)
            )
            me = Consumer(j, version, attempts, "begin", expired=job.expired)
            if job.expired or attempts > w.policy.max_attempts:
                me = me._replace(phase="read", age=0)
            yield (name, c, j), claimed.with_consumer(c, me)
            if s.budget.faults:
                yield (f"{name}_lost", c, j), claimed.with_consumer(c, None).fault(w.keys[j])


def _begin(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """begin_effects: write the intent, unless the key is in the ledger already."""
    key, begun = w.keys[me.job], me._replace(phase="begun", sent=1)
    if not _may_begin(w, s, c, me):
        yield ("begin", c), s.with_consumer(c, None)
    elif s.effects[key] is not None:
        yield ("begin", c), s.with_consumer(c, me._replace(phase="read"))
    elif w.without == "intent before the call":
        yield ("begin", c), s.with_consumer(c, begun)
    else:
        written = s.with_effect(key, Effect(me.job, me.version))
        yield ("begin", c), written.with_consumer(c, begun)
        if s.budget.faults:
            yield ("begin_lost", c), written.fault(key)


def _read(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """read_effects, and the decision on what it says."""
    effect = s.effects[w.keys[me.job]]
    elsewhere = False
    if effect is not None and effect.job != me.job and w.without != "at_work_elsewhere":
        other = s.jobs[effect.job]
        elsewhere = other.version == effect.version and other.holds
    yield ("read", c), s.with_consumer(c, tables.before_call(w, me, effect, elsewhere))


def _reopen(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """reopen_effects: begin a further try, unless somebody has begun one since we read."""
    key = w.keys[me.job]
    effect = s.effects[key]
    if effect is None or not _may_begin(w, s, c, me):
        yield ("reopen", c), s.with_consumer(c, None)
    elif (effect.state != "open" and w.without != "open state on reopen") or (
        effect.sent != me.sent and w.without != "requests_seen"
    ):
        yield ("reopen", c), s.with_consumer(c, tables.wait_for_other(me))
    else:
        nothing_open = effect.age is None
        new = effect._replace(
            job=me.job,
            version=me.version,
            sent=effect.sent + 1,
            age=effect.age or 0,
            sole=nothing_open,
            body=effect.body + (nothing_open and not effect.frozen),
            frozen=True,
        )
        written, begun = s.with_effect(key, new), me._replace(phase="begun", sent=new.sent)
        yield ("reopen", c), written.with_consumer(c, begun._replace(body=new.body))
        if s.budget.faults:
            again = Consumer(me.job, me.version, me.attempts, "begin")
            again = again._replace(phase="read", age=0, expired=True) if me.expired else again
            yield ("reopen_lost", c), written.with_consumer(c, again).fault(key)


def _may_begin(w: World, s: State, c: int, me: Consumer) -> bool:
    if w.without == "fence on begin":
        return s.jobs[me.job].place in LIVE
    return holds(w, s, c, me)


def _begun(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """The last check before the first byte: the lease, and the provider's memory."""
    key, not_started = w.keys[me.job], s.with_consumer(c, tables.not_started(me))
    lease = holds(w, s, c, me) or w.without == "lease check before the call"
    if not (lease and me.in_memory):
        yield ("check_fails", c), not_started
        return
    yield ("leave", c), s.with_consumer(c, me._replace(phase="calling"))
    if w.stops:
        yield ("stop_after_check", c), s.with_consumer(c, me._replace(phase="cleared"))
    if s.budget.faults:
        yield ("lease_too_short", c), not_started.fault(key)
        yield ("unreached", c), s.with_consumer(c, tables.after_call(w, me, "UNREACHED")).fault(key)


def _cleared(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """It goes on where it was stopped; out of time, this is the one documented exception."""
    gone = s.with_consumer(c, me._replace(phase="calling"))
    late = not (holds(w, s, c, me) and me.in_memory)
    yield ("leave_after_stop", c), gone.note(w.keys[me.job], excuses=late)


def _calling(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    key = w.keys[me.job]
    before = s.mails[key]
    mail, meaning = surroundings.receive(w, before, me.job, me.body)
    arrived = s.with_mail(key, mail)
    if meaning == "ACCEPTED":
        yield ("arrive", c), arrived.with_consumer(c, me._replace(phase="accepted"))
    else:
        told = arrived.note(key, faults=1, doubt=meaning == "KEY_TAKEN" or None)
        yield ("arrive", c), told.with_consumer(c, tables.after_call(w, me, meaning))
    if s.budget.faults:
        if mail.accepted > before.accepted:
            refusing = before._replace(refuses=before.refuses | {me.body})
            refused = s.with_mail(key, refusing).fault(key)
            yield ("refuse", c), refused.with_consumer(c, tables.after_call(w, me, "REFUSED"))
        throttled = s.with_consumer(c, tables.after_call(w, me, "THROTTLED"))
        yield ("throttle", c), throttled.fault(key)
        yield from _loses(w, surroundings.leave_under_way(s, key, me), c, me)


def _accepted(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    yield ("deliver", c), s.with_consumer(c, tables.after_call(w, me, "ACCEPTED"))
    if s.budget.faults:
        yield from _loses(w, s, c, me)
        odd = s.with_consumer(c, tables.after_call(w, me, "ACCEPTED_UNREADABLE"))
        key = w.keys[me.job]
        yield ("deliver_unreadable", c), odd.fault(key).note(key, doubt=True)


def _loses(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """The answer never comes; the failure counts as the job's own, or as an outage's."""
    key = w.keys[me.job]
    for meaning in ("FAILED", "UNAVAILABLE"):
        lost = s.with_consumer(c, tables.after_call(w, me, meaning)).fault(key)
        yield ("lose", c, meaning), lost.note(key, doubt=True)


def _settles(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """settle_attempts; its answer may be lost, then it is sent once more."""
    settled = _settle(w, s, c, me)
    yield ("settle", c), settled.with_consumer(c, None)
    if s.budget.faults and settled != s:
        yield ("settle_lost", c), settled.fault(w.keys[me.job])


def _settle(w: World, s: State, c: int, me: Consumer) -> State:
    key, said = w.keys[me.job], me.decision
    job, effect = s.jobs[me.job], s.effects[key]
    assert said is not None
    mine = owns(w, s, c, me) or (w.without == "fence on settle" and job.place in LIVE)
    if effect is None and w.without == "intent before the call":
        effect = Effect(me.job, me.version)
    recorded = w.without != "record of the done"
    written = False
    if effect is not None and said.state is not None:
        current = effect.sent == said.seen or w.without == "requests_seen"
        # A hold needs something open: a settled try may have been proven unsent since we read.
        possible = effect.age is not None or said.state != "held" or w.without == "open hold"
        in_turn = mine and effect.state == "open" and current and possible
        written = in_turn or (said.state == "delivered" and effect.state in {"open", "held"})
        if written:
            if said.state == "delivered" and recorded:
                effect = effect._replace(job=me.job, version=me.version)
            effect = effect._replace(
                state=said.state,
                age=None if said.nothing_open else effect.age,
                sole=effect.sole and not said.nothing_open,
                unreadable=said.unreadable,
                frozen=effect.frozen and said.state in {"open", "held"},
            )
    if mine:
        moved_on = said.state is not None and not written and (recorded or said.action != "done")
        action = "retry_now" if moved_on else said.action
        place = PLACES.get(action, action)
        attempts = job.attempts - (said.refund or moved_on)
        reason = None if place in LIVE else said.reason
        job = Job(place, job.version, attempts=attempts, reason=reason, expired=job.expired)
        job = Job("done", job.version) if place == "done" else job
    return s.with_job(me.job, job).with_effect(key, effect)


PLACES = {"retry": "backoff", "hold": "resolve", "give_back": "ready", "retry_now": "ready"}
PHASES = {
    "begin": _begin, "read": _read, "reopen": _reopen, "begun": _begun, "cleared": _cleared,
    "calling": _calling, "accepted": _accepted, "settle": _settles,
}  # fmt: skip


def _interrupted(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """Its heartbeat (extend_leases), its death, a failover behind its back."""
    job, key, effect = s.jobs[me.job], w.keys[me.job], s.effects[w.keys[me.job]]
    if w.without == "fence on the heartbeat" and job.place == "claimed":
        yield ("heartbeat", c), s.with_job(me.job, job._replace(holds=True))
    elif w.idle:
        yield ("heartbeat", c), s
    if s.budget.faults:
        dying = range(w.consumers) if w.one_process else [c]
        yield ("crash", c), surroundings.die(w, s, dying).fault(key)
    fresh = me.phase in {"begin", "read"} and (job.by, job.version) == (c, me.version)
    if s.budget.lost_commits and fresh and (effect is None or effect.version < me.version):
        # To a standby that never got the commit of this claim; its holder goes on believing in it.
        budget = s.budget._replace(lost_commits=s.budget.lost_commits - 1)
        unclaimed = Job(version=job.version - 1, attempts=job.attempts - 1, expired=job.expired)
        yield ("fail_over", c), s.with_job(me.job, unclaimed)._replace(budget=budget)
