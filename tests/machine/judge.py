"""Keeps its own books beside the provider, and says when a promise is broken.

It knows nothing of how the library decides: only what was ordered, which requests left, what the
provider did with them, and what people allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from outbox.job import Attempt
from outbox.outcome import JobAction, Meaning
from tests.machine.process import DEADLINE_SECONDS
from tests.machine.provider import ACTS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from outbox.cancel import Cancelled
    from outbox.job import Job
    from outbox.ledger import Begin
    from outbox.resolve import Resolution
    from outbox.retry import Permission, Retried
    from outbox.settle import Settled
    from tests.machine.bench import Look
    from tests.machine.process import Process, Work, World
    from tests.machine.provider import Place, Sent

#: Meanings after which a request surely was not accepted.
_UNSENT = frozenset(
    {
        Meaning.UNREACHED,
        Meaning.THROTTLED,
        Meaning.MISCONFIGURED,
        Meaning.REFUSED,
        Meaning.REFUSED_BARE,
    }
)
#: Meanings that say nothing about a job, so that a try which meets them is free.
_FREE = frozenset(
    {
        Meaning.UNREACHED,
        Meaning.THROTTLED,
        Meaning.MISCONFIGURED,
        Meaning.UNAVAILABLE,
        Meaning.IN_PROGRESS,
    }
)


@dataclass(slots=True)
class Order:
    """A committed order of an e-mail: one job."""

    id: int
    key: str
    mail: str
    cap: int
    ordering_key: str | None = None
    expires: float | None = None
    #: Claims since its last reset, less those that were given back.
    charged: int = 0
    #: Whether it had expired when it was claimed, by claim version.
    late: dict[int, bool] = field(default_factory=dict)
    retried: bool = False
    ended_at: float | None = None


@dataclass(slots=True)
class Mail:
    """What is known of one effect key."""

    #: The jobs whose requests were accepted.
    senders: list[int] = field(default_factory=list)
    #: When the earliest request left that may have been accepted unknown to anybody, and whither.
    doubt: tuple[float, Place] | None = None
    doubts: int = 0
    #: Where the request was frozen, and its bytes.
    frozen: tuple[Place, bytes] | None = None
    #: The tries, by job and claim, that were begun, and whether they are known to be unsent.
    unsent: dict[tuple[int, int], bool] = field(default_factory=dict)
    #: How many more e-mails a person has allowed.
    allowed: int = 0
    vouched: bool = False

    def begin_anew(self) -> None:
        """Nothing counts as open any more: a person has decided."""
        self.doubt = self.frozen = None
        self.unsent.clear()


@dataclass(frozen=True, slots=True)
class Reach:
    """What one step may change: the frame that each step has to stay in."""

    name: str = "nothing"
    jobs: Collection[int] = ()
    effects: Collection[str] = ()


class Judge:
    """The promises, and the books that they are judged by."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.orders: dict[int, Order] = {}
        self.mails: dict[str, Mail] = {}
        #: Kept in step by the history.
        self.seen: Look
        self.processes: list[Process] = []

    @property
    def _now(self) -> float:
        return self._world.provider.now()

    def mail(self, key: str) -> Mail:
        """The books of a key."""
        return self.mails.setdefault(key, Mail())

    def mine(self, process: Process, job: Job) -> bool:
        """Whether a claim is still the job's."""
        row = self.seen.jobs.get(job.id)
        claim = (job.claim_version, process.name)
        return row is not None and (row.claim_version, row.claimed_by) == claim

    def holds(self, process: Process, job: Job) -> bool:
        """Whether a claim is still the job's, and its lease runs."""
        return self.mine(process, job) and self.seen.jobs[job.id].holds

    # -- what a consumer does ----------------------------------------------------------------------

    def claimed(self, jobs: Iterable[Job], *, crashed: bool) -> None:
        """Claims were given: each to a job that nobody holds, charged, under a new version."""
        for job in jobs:
            order, row = self.orders[job.id], self.seen.jobs[job.id]
            assert not row.holds, "a job was claimed that another claim holds"
            assert row.claimed == crashed, "who crashes is to be tried alone"
            assert job.claim_version == row.claim_version + 1, "claim_version did not grow by one"
            order.charged += 1
            assert job.attempts == order.charged, "attempts do not count the crashes"
            late = order.expires is not None and order.expires <= self._now
            assert job.expired == late
            order.late[job.claim_version] = late

    def begun(self, process: Process, works: Sequence[Work], said: Sequence[Begin]) -> None:
        """Tries were begun, each by a claim that holds, with the bytes of its key."""
        for work, answer in zip(works, said, strict=True):
            if isinstance(answer, Attempt):
                assert self.holds(process, work.job), "a stale claim has begun its effect"
                mail = self.mail(work.job.effect_key)
                self._freeze(mail, process.place, answer.body or b"")
                mail.unsent[work.job.id, work.job.claim_version] = False

    def _freeze(self, mail: Mail, place: Place, body: bytes) -> None:
        if mail.frozen is not None:
            where, bytes_ = mail.frozen
            moved = place.provider != where.provider and mail.doubt is None
            assert moved or body == bytes_, "a repeat has other bytes"
        mail.frozen = (place, body)

    def leaves(self, process: Process, work: Work, sent: Sent, act: str) -> None:
        """A request leaves at this moment: was it allowed to?"""
        job, order, mail = work.job, self.orders[work.job.id], self.mail(work.job.effect_key)
        assert sent.wire_key == order.key, "another key on the wire"
        assert order.mail.encode() in sent.body, "somebody else's e-mail"
        assert self.holds(process, job), "a request left without a claim that holds"
        assert job.effect_key in self.seen.effects, "a request left without its intent"
        assert mail.frozen is not None
        assert mail.frozen[1] == sent.body, "a repeat has other bytes"
        assert order.charged <= order.cap, "more tries than allowed"
        if order.late[job.claim_version]:
            assert len(mail.unsent) > 1, "the first request left after its expiry"
        self._only_one_at_work(work)
        self._in_order(order)
        self._not_blindly(mail, process.place)
        if ACTS[act].meaning not in _UNSENT:
            mail.doubts += 1
            mail.doubt = mail.doubt or (self._now, process.place)

    def _only_one_at_work(self, work: Work) -> None:
        for process in self.processes:
            for other in process.works:
                same = other.job.effect_key == work.job.effect_key and other is not work
                if same and other.attempt is not None:
                    assert not self.holds(process, other.job), "two at work on one effect"

    def _in_order(self, order: Order) -> None:
        if order.ordering_key is None:
            return
        for other in self.orders.values():
            row = self.seen.jobs.get(other.id)
            if row is not None and other is not order and other.ordering_key == order.ordering_key:
                assert not row.holds, "two of one ordering key at once"
                assert other.id > order.id or other.retried, "overtaken in its order"

    def _not_blindly(self, mail: Mail, place: Place) -> None:
        if mail.doubt is None:
            return
        since, where = mail.doubt
        assert place == where, "what may have been sent is repeated elsewhere"
        memory = self._world.memory_seconds
        if not self._world.repeat_unknown:
            assert memory is not None, "an unknown send is repeated blindly"
            left = memory - (self._now - since)
            assert left >= DEADLINE_SECONDS, "repeated after the provider's memory"

    def accepted(self, sent: Sent) -> None:
        """The provider has accepted an e-mail: was it the only one?"""
        mail = self.mail(sent.wire_key)
        mail.senders.append(sent.job_id)
        allowed = 1 + mail.allowed + (mail.doubts if self._world.repeat_unknown else 0)
        assert len(mail.senders) <= allowed, "one key, two e-mails"

    def settled(self, process: Process, works: Sequence[Work], said: Sequence[Settled]) -> None:
        """Outcomes were written, by whoever still held a claim; the others were told."""
        for work, answer in zip(works, said, strict=True):
            job, outcome, mail = work.job, work.outcome, self.mail(work.job.effect_key)
            assert outcome is not None
            mine = self.mine(process, job)
            assert answer.claim_held == mine, "its holder was told wrong"
            if not mine:
                continue
            moved_on = outcome.effect_state is not None and not answer.effect_written
            if outcome.job_action is JobAction.RETRY and work.meaning in _FREE:
                assert outcome.refund, "an outage has cost an attempt"
            if outcome.refund or moved_on:
                self.orders[job.id].charged -= 1
            called_off = outcome.job_action is JobAction.GIVE_BACK
            if answer.effect_written and (called_off or work.meaning in _UNSENT):
                mail.unsent[job.id, job.claim_version] = True

    # -- what people do ----------------------------------------------------------------------------

    def cancelled(self, answer: Cancelled) -> None:
        """A job was cancelled: nothing may have left for it."""
        row = self.seen.jobs.get(answer.job_id)
        if row is None or answer.refusal is not None:
            return
        assert not row.holds, "cancelled while a consumer is at work on it"
        effect, mail = self.seen.effects.get(row.effect_key), self.mail(row.effect_key)
        if effect is not None and effect.fingerprint == row.fingerprint:
            assert effect.state in {"rejected", "given_up"} or mail.doubt is None, (
                "cancelled, and it may have been sent"
            )

    def retried(self, answer: Retried, permission: Permission) -> None:
        """An ended job is back: was it allowed to, and who answers for a second e-mail?"""
        row = self.seen.ended.get(answer.job_id)
        if row is None or answer.refusal is not None:
            return
        order, mail = self.orders[row.id], self.mail(row.effect_key)
        assert row.ended_as != "duplicate"
        assert row.has_payload, "back without a payload"
        if order.expires is not None and order.expires <= self._now:
            assert permission.ignore_expiry, "back after its expiry"
            order.expires = None
        order.charged, order.retried, order.ended_at = 0, True, None
        effect = self.seen.effects.get(row.effect_key)
        if effect is None or effect.fingerprint != row.fingerprint:
            return
        assert effect.state not in {"delivered", "held"}, "back from what is settled"
        if effect.state == "given_up":
            assert permission.send_again or mail.doubt is None, "sent again without a word"
            mail.allowed += 1
        if effect.state in {"rejected", "given_up"}:
            mail.begin_anew()

    def resolved(self, key: str, how: Resolution) -> None:
        """A held effect was decided by a person."""
        mail = self.mail(key)
        if how == "delivered":
            mail.vouched = True
        if how == "send_again":
            mail.allowed += 1
            # It keeps its frozen request.
            frozen = mail.frozen
            mail.begin_anew()
            mail.frozen = frozen
            for row in self.seen.jobs.values():
                if row.effect_key == key and row.waiting == "resolve":
                    order = self.orders[row.id]
                    order.charged, order.expires = 0, None

    def pruned(self, after: Look, days: float) -> None:
        """Payloads went: only of jobs that ended so long ago, and no request that is needed."""
        for id_, row in self.seen.ended.items():
            if row.has_payload and not after.ended[id_].has_payload:
                ended = self.orders[id_].ended_at
                assert ended is not None
                assert self._now - ended >= days * 86_400 - 1, "pruned too early"
        for key, effect in self.seen.effects.items():
            if effect.request is not None and after.effects[key].request is None:
                mail = self.mail(key)
                assert effect.state == "open"
                assert mail.doubt is None, "a request was pruned that may have to be repeated"
                mail.frozen = None

    # -- what must be true of each step ------------------------------------------------------------

    def step(self, before: Look, after: Look, reach: Reach) -> None:
        """Nothing changes but what this step may change, and what is settled stays settled."""
        for id_ in {*before.jobs, *before.ended, *after.jobs, *after.ended}:
            rows = [(look.jobs.get(id_), look.ended.get(id_)) for look in (before, after)]
            if rows[0] != rows[1]:
                assert id_ in reach.jobs, f"job {id_} was changed by {reach.name}"
            old, new = before.ended.get(id_), after.ended.get(id_)
            if old is not None and old != new:
                by_prune = new is not None and old == new._replace(has_payload=True)
                assert reach.name == "retry" or (reach.name == "prune" and by_prune), (
                    f"job {id_} had ended"
                )
        for key in before.effects.keys() | after.effects.keys():
            effect, changed = before.effects.get(key), after.effects.get(key)
            if effect == changed:
                continue
            assert key in reach.effects, f"effect {key} was changed by {reach.name}"
            if effect is not None:
                assert effect.state != "delivered", "delivered is final"
                assert effect.state in {"open", "held"} or reach.name == "retry", "settled is final"

    # -- what must be true at any moment -----------------------------------------------------------

    def state(self, look: Look) -> None:
        """Every order is accounted for, once, and the ledger says no more than is true."""
        assert look.jobs.keys() | look.ended.keys() <= self.orders.keys(), "a job from nowhere"
        for order in self.orders.values():
            self._accounted_for(order, look)
        for key, effect in look.effects.items():
            mail = self.mail(key)
            if effect.state == "delivered":
                assert mail.senders or mail.vouched, "delivered, and nobody has accepted it"
            if effect.state in {"open", "given_up"} and mail.doubt is not None:
                assert effect.may_have_been_sent, "the ledger has forgotten an open request"
            if effect.state == "held":
                assert not all(mail.unsent.values()), "held, and no request may have left"
                waits = [row for row in look.jobs.values() if row.effect_key == key]
                assert any(row.waiting == "resolve" for row in waits), "held, and nobody waits"

    def _accounted_for(self, order: Order, look: Look) -> None:
        live, ended = look.jobs.get(order.id), look.ended.get(order.id)
        effect, mail = look.effects.get(order.key), self.mail(order.key)
        assert live is None or ended is None, "live and ended at once"
        if live is not None:
            assert live.attempts == order.charged, "attempts do not count the crashes"
            return
        if order.ended_at is None:
            order.ended_at = self._now
        if ended is None:
            assert effect is not None, "a job has vanished"
            assert (effect.state, effect.job_id) == ("delivered", order.id), "a job has vanished"
        elif ended.ended_as == "duplicate":
            assert effect is not None
            assert effect.state == "delivered", "a duplicate of nothing"
            assert effect.fingerprint == ended.fingerprint, "a duplicate of something else"
        elif ended.reason != "given_up" and not mail.allowed and not self._world.repeat_unknown:
            assert order.id not in mail.senders, f"{ended.ended_as} ({ended.reason}), and sent"
