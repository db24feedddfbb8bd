"""The protocol as a small explicit-state spec: each atomic step of the shipped code, by hand.

What a statement does is written here once more in Python, with the statement's name beside it; what
the code decides between two statements is asked of the shipped tables (``outbox.verdict``,
``outbox.outcome``) through ``tables``. One consumer is a process that works on one job at a time.
Requests may arrive after their senders have given up, never after a tick (a memory is hours long,
a request minutes). A refusal for good stays one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from tests.model import tables
from tests.model.state import GONE, LAPSED, LIVE, Action, Consumer, Effect, Job, Mail, State, World

Item = TypeVar("Item")
Step = tuple[Action, State]


def steps(w: World, s: State) -> Iterator[Step]:
    """Everything that may happen next."""
    for c, me in enumerate(s.consumers):
        yield from _claims(w, s, c) if me is None else _works(w, s, c, me)
    for j, job in enumerate(s.jobs):
        yield from _time_passes_for_job(w, s, j, job)
        if s.budget.people or w.idle:
            yield from _people_decide_about_job(w, s, j, job)
    for key, mail in enumerate(s.mails):
        yield from _time_passes_for_mail(w, s, key, mail)
        if s.budget.people or w.idle:
            yield from _people_resolve(w, s, key)
    if s.budget.ticks and not any(me and me.phase == "calling" for me in s.consumers):
        yield ("tick",), _tick(s)


# -- claim, begin, call, settle ----------------------------------------------------------------


def _claims(w: World, s: State, c: int) -> Iterator[Step]:
    """claim_jobs, claim_crashed_job."""
    for j, job in enumerate(s.jobs):
        if job.place == "ready" or (job.place == "claimed" and not job.holds):
            name = "claim_crashed" if job.place == "claimed" else "claim"
            new = Job("claimed", job.version + 1, c, holds=True, attempts=job.attempts + 1)
            claimed = s._replace(jobs=_put(s.jobs, j, new))
            first = "begin" if new.attempts <= w.policy.max_attempts else "read"
            yield (name, c, j), _becomes(claimed, c, Consumer(j, new.version, new.attempts, first))
            if s.budget.faults:
                yield (f"{name}_lost", c, j), _fault(claimed, w.keys[j])


def _works(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    yield from PHASES[me.phase](w, s, c, me)
    job, key, effect = s.jobs[me.job], w.keys[me.job], s.effects[w.keys[me.job]]
    if w.without == "fence on the heartbeat" and job.place == "claimed":
        yield ("heartbeat", c), s._replace(jobs=_put(s.jobs, me.job, job._replace(holds=True)))
    elif w.idle:
        yield ("heartbeat", c), s
    if s.budget.faults:
        crashed = _becomes(s, c, None)
        yield ("crash", c), _fault(_give_up(crashed, key, me), key)
    if s.budget.lost_commits and me.phase == "begin" and _owns(w, s, c, me):
        # A failover to a standby that never got the commit of this claim; its holder has no idea.
        if effect is None or effect.version < me.version:
            left = s.budget._replace(lost_commits=s.budget.lost_commits - 1)
            before = Job("ready", job.version - 1, attempts=job.attempts - 1)
            lost = s._replace(jobs=_put(s.jobs, me.job, before), budget=left)
            yield ("lose_commit_of_claim", c), lost


def _begin(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """begin_effects: write the intent, unless the key is in the ledger."""
    key, begun = w.keys[me.job], me._replace(phase="begun", sent=1)
    if not _owns_and_holds(w, s, c, me):
        yield ("begin", c), _becomes(s, c, None)
    elif s.effects[key] is not None:
        yield ("begin", c), _becomes(s, c, me._replace(phase="read"))
    elif w.without == "intent before the call":
        yield ("begin", c), _becomes(s, c, begun)
    else:
        written = s._replace(effects=_put(s.effects, key, Effect(me.job, me.version)))
        yield ("begin", c), _becomes(written, c, begun)
        if s.budget.faults:
            yield ("begin_lost", c), _fault(written, key)


def _read(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """read_effects, and what the ledger's word allows."""
    effect = s.effects[w.keys[me.job]]
    holder = s.jobs[effect.job] if effect else None
    elsewhere = bool(
        holder and effect and effect.job != me.job
        and holder.version == effect.version and holder.holds
        and w.without != "at_work_elsewhere"
    )  # fmt: skip
    yield ("read", c), _becomes(s, c, tables.before_call(w, me, effect, elsewhere))


def _reopen(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """reopen_effects: begin a further try, unless somebody has begun one since we read."""
    key = w.keys[me.job]
    effect = s.effects[key]
    if not _owns_and_holds(w, s, c, me) or effect is None:
        yield ("reopen", c), _becomes(s, c, None)
    elif effect.state != "open" or (effect.sent != me.sent and w.without != "requests_seen"):
        yield ("reopen", c), _becomes(s, c, tables.wait_for_other(me))
    else:
        nothing_open = effect.age is None
        new = effect._replace(
            job=me.job, version=me.version, sent=effect.sent + 1, age=effect.age or 0,
            sole=nothing_open, body=effect.body + (nothing_open and not effect.frozen), frozen=True,
        )  # fmt: skip
        written = s._replace(effects=_put(s.effects, key, new))
        begun = me._replace(phase="begun", sent=new.sent, body=new.body)
        yield ("reopen", c), _becomes(written, c, begun)
        if s.budget.faults:
            again = Consumer(me.job, me.version, me.attempts, "begin")
            yield ("reopen_lost", c), _fault(_becomes(written, c, again), key)


def _begun(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """The last check before the first byte: the lease, and the provider's memory."""
    key, not_started = w.keys[me.job], tables.not_started(me)
    lease = _owns_and_holds(w, s, c, me) or w.without == "lease check before the call"
    if not lease or (me.age is not None and me.age >= LAPSED):
        yield ("check_fails", c), _becomes(s, c, not_started)
        return
    yield ("leave", c), _becomes(s, c, me._replace(phase="calling"))
    if w.stops:
        yield ("check_and_stop", c), _becomes(s, c, me._replace(phase="cleared"))
    if s.budget.faults:
        yield ("lease_too_short", c), _fault(_becomes(s, c, not_started), key)
        yield ("unreached", c), _fault(_answered(w, s, c, me, "UNREACHED"), key)


def _cleared(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    key, gone = w.keys[me.job], _becomes(s, c, me._replace(phase="calling"))
    in_time = _owns_and_holds(w, s, c, me) and (me.age is None or me.age < LAPSED)
    yield ("leave_after_stop", c), gone if in_time else _note(gone, key, excuses=1)


def _calling(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    key = w.keys[me.job]
    mail = s.mails[key]
    received, meaning = receive(w, mail, me.job, me.body)
    arrived = s._replace(mails=_put(s.mails, key, received))
    if meaning == "ACCEPTED":
        yield ("arrive", c), _becomes(arrived, c, me._replace(phase="accepted"))
    else:
        noted = _note(arrived, key, faults=1, doubt=meaning == "KEY_TAKEN")
        yield ("arrive", c), _answered(w, noted, c, me, meaning)
    if s.budget.faults:
        if received.accepted > mail.accepted:
            refused = s._replace(mails=_put(s.mails, key, mail._replace(refuses=me.body)))
            yield ("refuse", c), _fault(_answered(w, refused, c, me, "REFUSED"), key)
        yield ("throttle", c), _fault(_answered(w, s, c, me, "THROTTLED"), key)
        yield from _loses(w, _give_up(s, key, me), c, me)


def _accepted(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    key = w.keys[me.job]
    yield ("deliver", c), _answered(w, s, c, me, "ACCEPTED")
    if s.budget.faults:
        yield from _loses(w, s, c, me)
        odd = _note(_fault(s, key), key, doubt=True)
        yield ("deliver_unreadable", c), _answered(w, odd, c, me, "ACCEPTED_UNREADABLE")


def _loses(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    """The answer never comes; the failure counts as the job's own, or as an outage's."""
    lost = _note(_fault(s, w.keys[me.job]), w.keys[me.job], doubt=True)
    for meaning in ("FAILED", "UNAVAILABLE"):
        yield ("lose", c, meaning), _answered(w, lost, c, me, meaning)


def _settles(w: World, s: State, c: int, me: Consumer) -> Iterator[Step]:
    settled = _settle(w, s, c, me)
    yield ("settle", c), _becomes(settled, c, None)
    if s.budget.faults and settled != s:
        yield ("settle_lost", c), _fault(settled, w.keys[me.job])


def _settle(w: World, s: State, c: int, me: Consumer) -> State:
    """settle_attempts."""
    key, d = w.keys[me.job], me.decision
    job, effect, owns = s.jobs[me.job], s.effects[key], _owns(w, s, c, me)
    assert d is not None, "a consumer settles what it has decided"
    if w.without == "fence on settle":
        owns = job.place in LIVE
    if effect is None and w.without == "intent before the call":
        effect = Effect(me.job, me.version)
    written = False
    if effect and d.state:
        current = effect.sent == d.seen or w.without == "requests_seen"
        in_turn = owns and effect.state == "open" and current
        if written := in_turn or (d.state == "delivered" and effect.state in {"open", "held"}):
            effect = effect._replace(
                state=d.state, age=None if d.nothing_open else effect.age,
                sole=effect.sole and not d.nothing_open, unreadable=d.unreadable,
                frozen=effect.frozen and d.state in {"open", "held"},
            )  # fmt: skip
    if owns:
        moved_on = d.state is not None and d.action != "done" and not written
        places = {"retry": "backoff", "hold": "resolve", "give_back": "ready"}
        place = "ready" if moved_on else places.get(d.action, d.action)
        attempts = job.attempts - (d.refund or moved_on)
        job = Job(place, job.version, attempts=attempts, reason=None if place in LIVE else d.reason)
    return s._replace(jobs=_put(s.jobs, me.job, job), effects=_put(s.effects, key, effect))


PHASES = {
    "begin": _begin, "read": _read, "reopen": _reopen, "begun": _begun, "cleared": _cleared,
    "calling": _calling, "accepted": _accepted, "settle": _settles,
}  # fmt: skip


# -- time, the provider, people ----------------------------------------------------------------


def _time_passes_for_job(w: World, s: State, j: int, job: Job) -> Iterator[Step]:
    key = w.keys[j]
    effect = s.effects[key]
    if job.place == "claimed" and job.holds and (job.by == GONE or s.budget.faults):
        lapsed = s._replace(jobs=_put(s.jobs, j, job._replace(holds=False)))
        began = effect and (effect.job, effect.version) == (j, job.version)
        lapsed = _note(lapsed, key, doubt=bool(began and effect and effect.age is not None))
        yield ("lapse", j), lapsed if job.by == GONE else _fault(lapsed, key)
    elif job.place == "backoff":  # promote_due_jobs
        yield ("promote", j), s._replace(jobs=_put(s.jobs, j, job._replace(place="ready")))
    elif job.place == "resolve" and effect and effect.state != "held":  # release_held_jobs
        yield ("release", j), s._replace(jobs=_put(s.jobs, j, job._replace(place="ready")))
    if w.without == "recheck by the reaper":
        if job.place == "claimed" and not job.holds and s.reaper is None:
            yield ("reaper_looks", j), s._replace(reaper=j)
        if s.reaper == j and job.place == "claimed":
            free = Job("ready", job.version, attempts=job.attempts)
            yield ("reaper_frees", j), s._replace(jobs=_put(s.jobs, j, free), reaper=None)


def _time_passes_for_mail(w: World, s: State, key: int, mail: Mail) -> Iterator[Step]:
    for request in mail.under_way:
        rest = list(mail.under_way)
        rest.remove(request)
        late, _ = receive(w, mail._replace(under_way=tuple(rest)), *request)
        yield ("arrive_late", key, *request), s._replace(mails=_put(s.mails, key, late))
    if mail.remembers and mail.remembers[1] >= LAPSED:
        forgot = mail._replace(remembers=None)
        yield ("forget", key), s._replace(mails=_put(s.mails, key, forgot))


def receive(w: World, mail: Mail, job: int, body: int) -> tuple[Mail, str]:
    """A request reaches the provider."""
    if mail.remembers and w.without != "one key for all attempts":
        return mail, "ACCEPTED" if mail.remembers[0] == body else "KEY_TAKEN"
    if mail.refuses == body:
        return mail, "REFUSED"
    keeps = w.replays and w.without != "keys at the provider"
    accepted = mail._replace(
        accepted=mail.accepted + 1,
        remembers=(body, 0) if keeps else None,
        senders=mail.senders | {job},
    )
    return accepted, "ACCEPTED"


def _tick(s: State) -> State:
    """More than half of the provider's memory passes."""

    def older(age: int | None) -> int | None:
        return None if age is None else min(age + 1, LAPSED)

    return s._replace(
        effects=tuple(e and e._replace(age=older(e.age)) for e in s.effects),
        consumers=tuple(c and c._replace(age=older(c.age)) for c in s.consumers),
        mails=tuple(
            m._replace(
                under_way=(),
                remembers=m.remembers and (m.remembers[0], min(m.remembers[1] + 1, LAPSED)),
            )
            for m in s.mails
        ),
        budget=s.budget._replace(ticks=s.budget.ticks - 1),
    )
