"""The rules: everything that may happen to an outbox, in any order, with the judge looking on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from outbox import Outbox
from outbox.cancel import cancel
from outbox.outcome import JobAction
from outbox.resolve import Resolution, resolve
from outbox.retention import prune
from outbox.retry import Permission, retry
from tests.machine.judge import Judge, Order, Reach
from tests.machine.process import (
    BACKOFF_SECONDS_MAX,
    DEFAULT_CAP,
    LEASE_SECONDS,
    MEMORY_SECONDS,
    TOPIC,
    UNRENDERABLE,
    Process,
    Work,
    World,
)
from tests.machine.provider import ACTS, Place, Provider, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.machine.bench import Bench, Look

KEYS = ("a", "b", "c", "d")
PLACES = (Place("one", "x"), Place("one", "y"), Place("two", "x"))
DAY = 86_400.0
#: A second; most of a lease; a lease; the longest backoff.
SHORT_TIMES = (1.0, 45.0, LEASE_SECONDS + 1, BACKOFF_SECONDS_MAX + 1)
#: Nearly the provider's memory; all of it; longer than payloads are kept.
LONG_TIMES = (3_000.0, MEMORY_SECONDS + 1, 2 * DAY)
#: A history is about what becomes of orders, not about many of them.
ORDERS_MAX = 10
#: An order that is scheduled is so for so long.
LATER_SECONDS = 20.0
#: After this nothing is under way any more: a memory is hours long, a request minutes.
UNDER_WAY_SECONDS = 500.0
#: Rounds in which everything ends once faults have stopped, whatever the history.
ROUNDS_MAX = 60

_acts = st.sampled_from(sorted(ACTS))
_places = st.sampled_from((PLACES[0], PLACES[0], *PLACES))
_picks = st.integers(0, 7)
_seats = st.integers(0, 1)
_stages = st.sampled_from(("claim", "begin", "call", "settle", "settle"))
_seldom = st.integers(0, 3).map(lambda number: number == 3)


class Wish(NamedTuple):
    """What somebody wants to order."""

    key: str
    mail: str
    fate: str
    later: bool
    expires: float | None
    ordering_key: str | None
    priority: int
    cap: int | None


_wishes = st.builds(
    Wish,
    key=st.sampled_from(KEYS),
    mail=st.sampled_from((*["hello"] * 8, "other", UNRENDERABLE)),
    fate=st.sampled_from((*["commits"] * 6, "rolled back", "savepoint rolled back")),
    later=_seldom,
    expires=st.sampled_from((None, None, None, 30.0, 900.0)),
    ordering_key=st.sampled_from((None, None, None, "line")),
    priority=st.integers(0, 1),
    cap=st.sampled_from((None, None, 1, 2)),
)
#: How far a story goes before another step of somebody else may come.
STAGES = ("claim", "begin", "call", "settle")


class OutboxMachine(RuleBasedStateMachine):
    """One history. ``bench`` is set by whoever runs it."""

    bench: Bench
    #: From the beginning of a step until it was judged.
    in_a_step = True

    # -- the beginning -----------------------------------------------------------------------------

    @initialize(
        memory=st.sampled_from((MEMORY_SECONDS, MEMORY_SECONDS, None)),
        repeat=st.sampled_from((False, False, True)),
        wishes=st.lists(_wishes, min_size=1, max_size=4),
    )
    def begin_history(self, memory: float | None, repeat: bool, wishes: list[Wish]) -> None:
        self.bench.begin()
        provider = Provider(memory is not None, self._accepted, lambda: self.bench.now)
        self.world = World(memory, repeat, provider, self._leaves)
        self.judge = Judge(self.world)
        self.processes = [Process(self.bench, self.world, PLACES[0]) for _ in range(2)]
        self.judge.processes = self.processes
        self.reach = Reach()
        self.judge.seen = self.bench.look()
        kind = "no keys" if memory is None else "keys"
        self._reached(f"world: {kind}, {'repeat' if repeat else 'hold'}")
        for wish in wishes:
            self._step(self.order, wish)

    def _accepted(self, sent: Sent) -> None:
        self.judge.accepted(sent)

    def _leaves(self, process: Process, work: Work, sent: Sent, act: str) -> None:
        self.judge.leaves(process, work, sent, act)

    @property
    def seen(self) -> Look:
        return self.judge.seen

    def _reached(self, what: str) -> None:
        self.bench.reached[what] += 1

    # -- orders ------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.judge.orders) < ORDERS_MAX)
    @rule(wish=_wishes)
    def order(self, wish: Wish) -> None:
        """An order, of a new key or one that is there, with the same e-mail or another."""
        if wish.fate == "commits":
            self._order(wish)
        else:
            self._roll_back(wish)

    def _order(self, wish: Wish) -> None:
        with self.bench.sql.transaction():
            id_ = self._enqueue(wish, wish.mail)
        expires = None if wish.expires is None else self.bench.now + wish.expires
        self.judge.orders[id_] = Order(
            id_, wish.key, wish.mail, wish.cap or DEFAULT_CAP, wish.ordering_key, expires
        )
        self._did("enqueue", Reach(jobs={id_}))
        if wish.ordering_key:
            self._reached("enqueue: ordered")
        if wish.key in self.seen.effects:
            self._reached("enqueue: key in the ledger")

    def _roll_back(self, wish: Wish) -> None:
        sql, whole = self.bench.sql, wish.fate == "rolled back"
        with sql.transaction(force_rollback=whole), sql.transaction(force_rollback=not whole):
            self._enqueue(wish, "never")
        self._did(f"enqueue: {wish.fate}")

    def _enqueue(self, wish: Wish, mail: str) -> int:
        moment = datetime.now(UTC)
        expires = None if wish.expires is None else moment + timedelta(seconds=wish.expires)
        return Outbox().enqueue(
            self.bench.sql,
            TOPIC,
            {"mail": mail},
            effect_key=wish.key,
            available_at=moment + timedelta(seconds=LATER_SECONDS) if wish.later else None,
            expires_at=expires,
            ordering_key=wish.ordering_key,
            priority=wish.priority,
            max_attempts=wish.cap,
        )

    # -- consumers ---------------------------------------------------------------------------------

    @rule(
        pick=_picks,
        what=st.sampled_from(("claim", "begin", "settle")),
        answer_lost=_seldom,
    )
    def batch(self, pick: int, what: str, answer_lost: bool) -> None:
        """Several jobs in one statement; its answer may be lost, then it is sent once more."""
        if what == "claim":
            self._claim(pick % 2, 2 + pick // 2)
        elif what == "begin" and self._has(_fresh):
            process, works = self._like(pick, _fresh)
            self._begin(process, works, answer_lost=answer_lost)
        elif what == "settle" and self._has(_decided):
            process, works = self._like(pick, _decided)
            self._settle(process, works, answer_lost=answer_lost)

    def _claim(self, seat: int, limit: int) -> None:
        self._did("claim", self._claimable())
        jobs = self.processes[seat].claim(limit)
        self._now_claimed(jobs, crashed=False)

    def _claim_crashed(self, seat: int) -> None:
        self._did("claim crashed", self._claimable())
        jobs = self.processes[seat].claim_crashed()
        self._now_claimed(jobs, crashed=True)

    def _free(self) -> bool:
        return any(not row.claimed and row.waiting != "resolve" for row in self._jobs)

    def _claimable(self) -> Reach:
        return Reach(jobs={row.id for row in self._jobs if not row.holds})

    def _now_claimed(self, jobs: Sequence[Any], *, crashed: bool) -> None:
        if jobs:
            self._reached("claimed a crashed job" if crashed else "claimed a job")
        self.judge.claimed(jobs, crashed=crashed)
        in_hand = [work.job.id for process in self.processes for work in process.works]
        if any(in_hand.count(job.id) > 1 for job in jobs):
            self._reached("claimed what a stale claim has in hand")

    def _begin(self, process: Process, works: Sequence[Work], *, answer_lost: bool) -> None:
        holding = {work.job.effect_key for work in works if self.judge.holds(process, work.job)}
        self._did("begin", Reach(effects=holding))
        said = process.begin(works, answer_lost=answer_lost)
        self.judge.begun(process, works, said)
        for answer in said:
            self._reached(f"begin: {_short(answer)}")

    def _call(self, process: Process, work: Work, act: str, *, own: bool) -> None:
        self._did("call")
        outcome = process.call(work, act, own=own)
        if work.act is None:
            self._reached("call: not started")
        else:
            self._reached(f"answer: {work.act}")
        self._reached(f"outcome: {_short(outcome)}")

    def _settle(self, process: Process, works: Sequence[Work], *, answer_lost: bool) -> None:
        jobs, effects = set(), set()
        for work in works:
            key = work.job.effect_key
            effect, outcome = self.seen.effects.get(key), work.outcome
            assert outcome is not None
            if self.judge.mine(process, work.job):
                jobs.add(work.job.id)
                effects.add(key)
            elif outcome.effect_state == "delivered" and effect and effect.state in _UNSETTLED:
                effects.add(key)
                self._reached("settle: a stale acceptance")
            else:
                self._reached("settle: stale")
        self._did("settle", Reach(jobs=jobs, effects=effects))
        said = process.settle(works, answer_lost=answer_lost)
        self.judge.settled(process, works, said)
        for work, answer in zip(works, said, strict=True):
            if answer.claim_held and work.outcome and work.outcome.effect_state is not None:
                if not answer.effect_written:
                    self._reached("settle: moved on")
                else:
                    self._reached(f"settle: {work.outcome.effect_state}")

    @precondition(lambda self: self._free())
    @rule(
        seat=_seats,
        acts=st.lists(_acts, min_size=1, max_size=3),
        until=_stages,
        own=st.booleans(),
    )
    def work(self, seat: int, acts: list[str], until: str, own: bool) -> None:
        """The stories of some jobs, one after the other, the last one as far as it goes."""
        for number, act in enumerate(acts, start=1):
            self._next(seat, act, until if number == len(acts) else "settle", own=own)

    def _next(self, seat: int, act: str, until: str, *, own: bool) -> None:
        process = self.processes[seat]
        count = len(process.works)
        self._step(self._claim, seat, 1)
        waits = any(row.waiting in {"backoff", "schedule"} for row in self._jobs)
        if len(process.works) == count and waits:
            self._step(self.time_passes, BACKOFF_SECONDS_MAX + 1)
            self._step(self._claim, seat, 1)
        if len(process.works) > count:
            self._go_on(process, until, act, own=own)

    @precondition(lambda self: any(row.claimed and not row.holds for row in self._jobs))
    @rule(seat=_seats, until=_stages, act=_acts, own=st.booleans())
    def recover(self, seat: int, until: str, act: str, own: bool) -> None:
        """The story of one job whose last claim ended in a crash."""
        count = len(self.processes[seat].works)
        self._step(self._claim_crashed, seat)
        if len(self.processes[seat].works) > count:
            self._go_on(self.processes[seat], until, act, own=own)

    @precondition(lambda self: self._has(_any))
    @rule(pick=_picks, until=_stages, act=_acts, own=st.booleans())
    def go_on(self, pick: int, until: str, act: str, own: bool) -> None:
        """Somebody goes on with what it has in hand, whatever has happened meanwhile."""
        found = [(process, work) for process in self.processes for work in process.works]
        process, work = found[pick % len(found)]
        process.works.remove(work)
        process.works.append(work)
        self._go_on(process, until, act, own=own)

    def _go_on(self, process: Process, until: str, act: str, *, own: bool) -> None:
        work, stage = process.works[-1], STAGES.index(until)
        if work.fresh and stage >= 1:
            self._step(self._begin, process, [work], answer_lost=False)
        if work.begun and work in process.works and stage >= 2:
            self._step(self._call, process, work, act, own=own)
        if work.outcome is not None and work in process.works and stage >= 3:
            self._step(self._settle, process, [work], answer_lost=False)

    @precondition(lambda self: self._has(_any))
    @rule(
        seat=_seats,
        how=st.sampled_from(("crash", "restart", "heartbeat", "lapse")),
        place=_places,
        deploy=st.booleans(),
    )
    def interrupt(self, seat: int, how: str, place: Place, deploy: bool) -> None:
        """What may come between two steps of a process; a successor may be configured anew."""
        if how == "crash":
            self._crash(seat, place, deploy=deploy)
        elif how == "restart":
            self._restart(seat, place, deploy=deploy)
        elif how == "heartbeat":
            self._heartbeat(seat)
        else:
            self._lapse(seat)

    def _crash(self, seat: int, place: Place, *, deploy: bool) -> None:
        """A process dies and forgets everything; another starts, configured as it may be."""
        self._did("crash")
        for work in self.processes[seat].works:
            stage = "claim" if work.fresh else "begin" if work.begun else "answer"
            self._reached(f"crash after {stage}")
        self._start(seat, place, deploy=deploy)

    def _restart(self, seat: int, place: Place, *, deploy: bool) -> None:
        """A clean shutdown charges nothing; what has begun is settled as far as it has come."""
        process = self.processes[seat]
        fresh = process.shut_down()
        self._did("restart")
        if fresh:
            self._reached("restart: gave back")
        for work in [work for work in process.works if work.begun]:
            self._step(self._call, process, work, "accepted", own=True)
        for work in list(process.works):
            self._step(self._settle, process, [work], answer_lost=False)
        self._did("restart")
        self._start(seat, place, deploy=deploy)

    def _start(self, seat: int, place: Place, *, deploy: bool) -> None:
        """Another process; maybe with another template, for everybody: rendering is no promise."""
        if deploy:
            self._reached("another template")
            self.world.template += 1
        if place != self.processes[seat].place:
            self._reached("another place")
        self.processes[seat] = Process(self.bench, self.world, place)

    def _heartbeat(self, seat: int) -> None:
        process = self.processes[seat]
        if not process.works:
            return
        newest = {work.job.id: work.job for work in process.works}
        held = {id_ for id_, job in newest.items() if self.judge.holds(process, job)}
        self._did("heartbeat", Reach(jobs=held))
        lost = process.extend()
        assert not held & set(lost), "a heartbeat has lost a claim that holds"
        if lost:
            self._reached("heartbeat: told of a loss")

    def _lapse(self, seat: int) -> None:
        """One process is stopped for as long as its leases, and goes on with what it has."""
        process = self.processes[seat]
        ids = {w.job.id for w in process.works if self.judge.mine(process, w.job)}
        self._did("lapse", Reach(jobs=ids))
        if ids:
            self._reached("lapse: of claims in hand")
        self.bench.sql.execute(
            "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 second'"
            " WHERE id = ANY (%s)", [list(ids)]
        )  # fmt: skip
        ends = process.leases._ends
        ends.update(dict.fromkeys(ends, 0.0))

    @precondition(lambda self: self._has(_any))
    @rule(seat=_seats, by=_seats, until=_stages, act=_acts, own=st.booleans())
    def overtake(self, seat: int, by: int, until: str, act: str, own: bool) -> None:
        """Somebody is stopped, and another (or it itself, later on) recovers one of its jobs."""
        self._step(self._lapse, seat)
        count = len(self.processes[by].works)
        self._step(self._claim_crashed, by)
        if len(self.processes[by].works) > count:
            self._go_on(self.processes[by], until, act, own=own)

    # -- time, the provider, the shop's developers -------------------------------------------------

    @rule(seconds=st.sampled_from((*SHORT_TIMES, *SHORT_TIMES, *LONG_TIMES)))
    def time_passes(self, seconds: float) -> None:
        self._did(f"time: {seconds:g} s", self._everything())
        self.bench.older(seconds)
        if seconds > UNDER_WAY_SECONDS:
            self.world.provider.under_way.clear()

    @precondition(lambda self: self.world.provider.under_way)
    @rule(pick=_picks)
    def arrive(self, pick: int) -> None:
        """A request arrives whose sender has given up waiting."""
        under_way = self.world.provider.under_way
        self._did("arrive late")
        self.world.provider.arrive(under_way.pop(pick % len(under_way)))

    @precondition(lambda self: self.world.provider.forgettable(MEMORY_SECONDS))
    @rule(pick=_picks)
    def forget(self, pick: int) -> None:
        """The provider's memory of a key is over."""
        keys = self.world.provider.forgettable(MEMORY_SECONDS)
        self._did("forget")
        self.world.provider.forget(keys[pick % len(keys)])

    # -- people ------------------------------------------------------------------------------------

    @rule(pick=_picks, what=st.sampled_from(("cancel", "prune", "resolve", "retry")))
    def meddle(self, pick: int, what: str) -> None:
        """A person with a command, whether it makes sense or not."""
        if what == "cancel" and self.judge.orders:
            self._cancel(sorted(self.judge.orders)[pick % len(self.judge.orders)])
        elif what == "prune":
            self._prune(float(pick % 2))
        elif what == "resolve" and self.seen.effects:
            keys = sorted(self.seen.effects)
            self._resolve(keys[pick % len(keys)], list(Resolution)[pick % 3])
        elif what == "retry" and self.judge.orders:
            id_ = sorted(self.judge.orders)[pick % len(self.judge.orders)]
            self._retry(id_, Permission(send_again=pick % 2 == 0, ignore_expiry=pick > 3))

    @precondition(lambda self: self._revivable())
    @rule(pick=_picks, send_again=st.booleans(), ignore_expiry=st.booleans())
    def retry(self, pick: int, send_again: bool, ignore_expiry: bool) -> None:
        rows = self._revivable()
        permission = Permission(send_again=send_again, ignore_expiry=ignore_expiry)
        self._retry(rows[pick % len(rows)], permission)

    @precondition(lambda self: self._held())
    @rule(pick=_picks, how=st.sampled_from(Resolution))
    def resolve(self, pick: int, how: Resolution) -> None:
        held = self._held()
        self._resolve(held[pick % len(held)], how)

    def _cancel(self, id_: int) -> None:
        self._did("cancel", Reach(jobs={id_}))
        (answer,) = cancel(self.bench.operator, [id_])
        self._reached(f"cancel: {answer.refusal or 'done'}")
        self.judge.cancelled(answer)

    def _revivable(self) -> list[int]:
        rows = self.seen.ended.values()
        return sorted(row.id for row in rows if row.ended_as != "duplicate" and row.has_payload)

    def _retry(self, id_: int, permission: Permission) -> None:
        row = self.seen.ended.get(id_)
        effect = row and self.seen.effects.get(row.effect_key)
        same = row and effect and effect.fingerprint == row.fingerprint
        reopens = same and effect and effect.state in {"rejected", "given_up"}
        effects = {effect.effect_key} if effect and reopens else ()
        self._did("retry", Reach(jobs={id_}, effects=effects))
        (answer,) = retry(self.bench.operator, [id_], permission)
        self._reached(f"retry: {answer.refusal or 'done'}")
        if effect and answer.refusal is None:
            self._reached(f"retry: of an effect that is {effect.state}")
        self.judge.retried(answer, permission)

    def _held(self) -> list[str]:
        rows = self.seen.effects.values()
        return sorted(row.effect_key for row in rows if row.state == "held")

    def _resolve(self, key: str, how: Resolution) -> None:
        held = key in self._held()
        beside = [row for row in self._jobs if row.effect_key == key]
        waiting = {row.id for row in beside if row.waiting == "resolve"}
        self._did("resolve", Reach(jobs=waiting, effects={key}) if held else Reach())
        (answer,) = resolve(self.bench.operator, [key], how)
        assert answer.done == held
        self._reached(f"resolve: {how if held else 'not held'}")
        if held:
            self.judge.resolved(key, how)

    def _prune(self, days: float) -> None:
        free = {key for key, row in self.seen.effects.items() if not row.may_have_been_sent}
        self._did("prune", Reach(jobs=set(self.seen.ended), effects=free))
        cleared = sum(prune(self.bench.operator, days))
        if cleared:
            self._reached("prune: cleared")
        self.judge.pruned(self.bench.look(), days)

    # -- what holds after each step ----------------------------------------------------------------

    @invariant()
    def promises(self) -> None:
        """Every step stays in its frame, and every promise holds."""
        after = self.bench.look()
        self.judge.step(self.judge.seen, after, self.reach)
        self.judge.seen = after
        self.reach = Reach()
        self.judge.state(after)
        self.in_a_step = False

    # -- the end -----------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Once faults stop, everything ends but what waits for a person; and then that, too."""
        if self.in_a_step:  # that has failed: there is nothing to add
            return
        self.processes[:] = [Process(self.bench, self.world, PLACES[0]) for _ in range(2)]
        self._run_dry()
        # Sent again with other bytes (a retry renders anew) a key may be refused: that was sent.
        for how in (Resolution.SEND_AGAIN, Resolution.DELIVERED):
            for key in self._held():
                self._step(self._resolve, key, how)
            self._run_dry()
        assert not self.seen.jobs, "something never ends"
        for row in self.seen.ended.values():
            self._reached(f"end: {row.ended_as} {row.reason}")
        for effect in self.seen.effects.values():
            self._reached(f"end: effect {effect.state}")

    def _run_dry(self) -> None:
        """Let time pass and a process work with no fault, until only held effects are left."""
        process = self.processes[0]
        for _ in range(ROUNDS_MAX):
            held = {row.effect_key for row in self.seen.effects.values() if row.state == "held"}
            stuck = any(row.effect_key in held and row.ordering_key for row in self._jobs)
            waits = [
                row for row in self._jobs
                if row.waiting != "resolve" and not (stuck and row.waiting == "order")
            ]  # fmt: skip
            if not waits:
                return
            self._step(self.time_passes, 701.0)
            self._step(self._claim, 0, 8)
            if not process.works:
                self._step(self._claim_crashed, 0)
            if process.works:
                self._finish(process)
        raise AssertionError("something never ends")

    def _finish(self, process: Process) -> None:
        self._step(self._begin, process, list(process.works), answer_lost=False)
        for work in [work for work in process.works if work.begun]:
            self._step(self._call, process, work, "accepted", own=True)
        if process.works:
            self._step(self._settle, process, list(process.works), answer_lost=False)

    # -- parts of a rule ---------------------------------------------------------------------------

    @property
    def _jobs(self) -> list[Any]:
        return list(self.seen.jobs.values())

    def _everything(self) -> Reach:
        return Reach(jobs={*self.seen.jobs, *self.seen.ended}, effects=set(self.seen.effects))

    def _did(self, name: str, reach: Reach = Reach()) -> None:  # noqa: B008 - it is frozen
        """Say what comes now, and what it may change."""
        self._reached(name)
        self.in_a_step = True
        self.reach = Reach(name, reach.jobs, reach.effects)

    def _step(self, step: Callable[..., None], *given: Any, **named: Any) -> None:
        """A step of a rule that consists of several: judged by itself."""
        step(*given, **named)
        self.promises()

    def _has(self, wanted: Callable[[Work], bool]) -> bool:
        return any(wanted(work) for process in self.processes for work in process.works)

    def _like(self, pick: int, wanted: Callable[[Work], bool]) -> tuple[Process, list[Work]]:
        """All works of one process that are so far."""
        found = [process for process in self.processes if any(map(wanted, process.works))]
        process = found[pick % len(found)]
        return process, [work for work in process.works if wanted(work)]


def _any(work: Work) -> bool:
    return True


def _fresh(work: Work) -> bool:
    return work.fresh


def _decided(work: Work) -> bool:
    return work.outcome is not None


_UNSETTLED = frozenset({"open", "held"})


def _short(said: Any) -> str:
    action = getattr(said, "job_action", None)
    if not isinstance(action, JobAction):
        return type(said).__name__
    return f"{action} {said.reason}" if said.reason else str(action)
