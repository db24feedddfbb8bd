"""What goes on around the consumers: time, the provider, people with their commands.

Requests may arrive after their senders have given up, but never after a tick: a memory is hours
long, a request minutes. A refusal for good stays one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.model.state import GONE, LAPSED, LIVE, Action, Consumer, Job, Mail, State, World

Step = tuple[Action, State]


def steps(w: World, s: State) -> Iterator[Step]:
    """Yield what may happen without a consumer's doing."""
    for j, job in enumerate(s.jobs):
        yield from _time_passes(w, s, j, job)
    for key, mail in enumerate(s.mails):
        yield from _provider_goes_on(w, s, key, mail)
    if s.budget.ticks and not any(me and me.phase == "calling" for me in s.consumers):
        yield ("tick",), _tick(w, s)
    if s.budget.people or w.idle:
        yield from _people_decide(w, s)


# -- time ----------------------------------------------------------------------------------------


def _time_passes(w: World, s: State, j: int, job: Job) -> Iterator[Step]:
    key = w.keys[j]
    effect = s.effects[key]
    ready = s.with_job(j, job._replace(place="ready"))
    if job.place == "backoff":
        yield ("promote", j), ready  # promote_due_jobs
    elif job.place == "resolve" and effect is not None:
        if effect.state != "held":
            yield ("release", j), ready  # release_held_jobs
        elif w.idle:
            yield ("release", j), s
    elif job.holds and (job.by == GONE or s.budget.faults):
        begun = effect is not None and (effect.job, effect.version) == (j, job.version)
        doubt = begun and effect is not None and effect.age is not None
        lapsed = s.with_job(j, job._replace(holds=False)).note(key, doubt=doubt or None)
        yield ("lapse", j), lapsed if job.by == GONE else lapsed.fault(key)
    if w.expires and job.place in LIVE and not job.expired:
        yield ("expire", j), s.with_job(j, job._replace(expired=True))
    if w.without == "recheck by the reaper" and job.place == "claimed":
        if not job.holds and s.reaper is None:
            yield ("reaper_looks", j), s._replace(reaper=j)
        if s.reaper == j:
            free = Job("ready", job.version, attempts=job.attempts)
            yield ("reaper_frees", j), s.with_job(j, free)._replace(reaper=None)


def _tick(w: World, s: State) -> State:
    for me in s.consumers:
        if me is not None:  # it was stopped for as long; that is a fault for its effect
            s = s.note(w.keys[me.job], faults=1)
    return s._replace(
        effects=tuple(e and e._replace(age=_older(e.age)) for e in s.effects),
        consumers=tuple(c and c._replace(age=_older(c.age)) for c in s.consumers),
        mails=tuple(_remembered_longer(mail) for mail in s.mails),
        budget=s.budget._replace(ticks=s.budget.ticks - 1),
    )


def _older(age: int | None) -> int | None:
    return None if age is None else min(age + 1, LAPSED)


def _remembered_longer(mail: Mail) -> Mail:
    if mail.remembers is None:
        return mail._replace(under_way=())
    body, age = mail.remembers
    return mail._replace(under_way=(), remembers=(body, min(age + 1, LAPSED)))


# -- the provider ----------------------------------------------------------------------------------


def receive(w: World, mail: Mail, job: int, body: int) -> tuple[Mail, str]:
    """Return what a request that arrives makes of a key, and the answer that it gets."""
    if mail.remembers is not None and w.without != "one key for all attempts":
        return mail, "ACCEPTED" if mail.remembers[0] == body else "KEY_TAKEN"
    if body in mail.refuses:
        return mail, "REFUSED"
    keeps_keys = w.replays and w.without != "keys at the provider"
    accepted = mail._replace(
        accepted=mail.accepted + 1,
        remembers=(body, 0) if keeps_keys else None,
        senders=mail.senders | {job},
    )
    return accepted, "ACCEPTED"


def leave_under_way(s: State, key: int, me: Consumer) -> State:
    """Let a request whose sender gives up arrive later, or never."""
    mail = s.mails[key]
    requests = tuple(sorted((*mail.under_way, (me.job, me.body))))
    return s.with_mail(key, mail._replace(under_way=requests))


def die(w: World, s: State, dying: Sequence[int]) -> State:
    """Let consumers forget what they believe; what was sent is sent."""
    for c in dying:
        me = s.consumers[c]
        if me is not None:
            if me.phase == "calling":
                s = leave_under_way(s, w.keys[me.job], me)
            s = s.with_consumer(c, None)
    return s


def _provider_goes_on(w: World, s: State, key: int, mail: Mail) -> Iterator[Step]:
    for request in set(mail.under_way):
        rest = list(mail.under_way)
        rest.remove(request)
        late, _ = receive(w, mail._replace(under_way=tuple(rest)), *request)
        yield ("arrive_late", key, *request), s.with_mail(key, late)
    if mail.remembers is not None and mail.remembers[1] >= LAPSED:
        yield ("forget", key), s.with_mail(key, mail._replace(remembers=None))


# -- people ----------------------------------------------------------------------------------------


def _people_decide(w: World, s: State) -> Iterator[Step]:
    for j, job in enumerate(s.jobs):
        yield from _decided(w, s, ("cancel", j), _cancel(w, s, j, job))
        yield from _decided(w, s, ("retry", j), _retry(w, s, j, job, send_again=False))
        again = _retry(w, s, j, job, send_again=True)
        yield from _decided(w, s, ("retry", j, "send_again"), again)
    for key in range(len(s.effects)):
        for how in ("delivered", "send_again", "give_up"):
            yield from _decided(w, s, ("resolve", key, how), _resolve(w, s, key, how))


def _decided(w: World, s: State, action: Action, after: State) -> Iterator[Step]:
    if after is s:
        if w.idle:
            yield action, s
    elif s.budget.people:
        yield action, after._replace(budget=s.budget._replace(people=s.budget.people - 1))


def _cancel(w: World, s: State, j: int, job: Job) -> State:
    """cancel_jobs."""
    effect = s.effects[w.keys[j]]
    if job.place not in LIVE:
        return s
    sent = effect is not None and (effect.state in {"delivered", "held"} or effect.age is not None)
    if (job.holds or sent) and w.without != "check before a cancel":
        return s
    return s.with_job(j, _ended(job, "cancelled", "by_person"))


def _retry(w: World, s: State, j: int, job: Job, *, send_again: bool) -> State:
    """retry_jobs."""
    key = w.keys[j]
    effect = s.effects[key]
    if job.place in LIVE | {"done", "duplicate"} or job.expired:
        return s
    after = s.with_job(j, Job("ready", job.version))
    if effect is None:
        return after
    doubtful = effect.state == "given_up" and effect.age is not None
    if effect.state in {"delivered", "held"} or (doubtful and not send_again):
        return s
    if effect.state in {"rejected", "given_up"}:
        anew = effect._replace(state="open", age=None, sole=False, frozen=False, unreadable=False)
        after = after.with_effect(key, anew).note(key, faults=1)
    return after.note(key, excuses=1, doubt=False) if doubtful else after


def _resolve(w: World, s: State, key: int, how: str) -> State:
    """lock_held_jobs, resolve_effects."""
    effect = s.effects[key]
    if effect is None or effect.state != "held":
        return s
    state = {"delivered": "delivered", "give_up": "given_up", "send_again": "open"}[how]
    new = effect._replace(
        state=state,
        age=effect.age if how == "give_up" else None,
        sole=effect.sole and how == "give_up",
        frozen=effect.frozen and how == "send_again",
        unreadable=False,
    )
    after = s.with_effect(key, new)
    for j, job in enumerate(s.jobs):
        if job.place == "resolve" and w.keys[j] == key:
            after = after.with_job(j, _resolved(job, how, itself=effect.job == j))
    if how == "delivered":
        return after.note(key, vouched=True)
    if how == "send_again":
        return after.note(key, faults=1, excuses=1, doubt=False)
    return after


def _resolved(job: Job, how: str, *, itself: bool) -> Job:
    if how == "send_again":
        return Job("ready", job.version)
    if how == "give_up":
        return _ended(job, "dead", "given_up")
    return Job("done", job.version) if itself else _ended(job, "duplicate", "delivered")


def _ended(job: Job, place: str, reason: str) -> Job:
    return job._replace(place=place, by=GONE, holds=False, reason=reason)
