"""A shipped ``Consumer``, moved one step of one job at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import outbox.consumer
from outbox.backoff import Backoff
from outbox.consumer import Consumer
from outbox.gateway import Unrenderable
from outbox.job import Attempt, Job, Request
from outbox.outcome import Answer, Meaning, Outcome, Policy
from outbox.settings import OutboxSettings
from outbox.settle import Settled, Settlement
from tests.machine.provider import ACTS, Place, Provider, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from outbox.claim import Claims
    from outbox.lease import Leases
    from outbox.ledger import Begin, Intent
    from tests.machine.bench import Bench

TOPIC = "email.x"
LEASE_SECONDS = 60.0
DEADLINE_SECONDS = 10.0
MEMORY_SECONDS = 3_600.0
BACKOFF_SECONDS_MAX = 400.0
DEFAULT_CAP = 3
UNRENDERABLE = "unrenderable"
_SETTINGS = OutboxSettings(lease_seconds=LEASE_SECONDS, heartbeat_seconds=15.0)


@dataclass(slots=True)
class World:
    """What is the same for all processes of a history, and the template, which changes."""

    memory_seconds: float | None
    repeat_unknown: bool
    provider: Provider
    #: Hears of each request in the moment in which it leaves.
    leaves: Callable[[Process, Work, Sent, str], None]
    template: int = 1

    @property
    def policy(self) -> Policy:
        backoff = Backoff(5.0, BACKOFF_SECONDS_MAX)
        return Policy(self.memory_seconds, self.repeat_unknown, DEFAULT_CAP, backoff)


@dataclass(slots=True)
class Work:
    """What a process believes of one claim: how far it has come."""

    job: Job
    attempt: Attempt | None = None
    outcome: Outcome | None = None
    #: What its request has met, where one has left.
    act: str | None = None
    meaning: Meaning | None = None

    @property
    def begun(self) -> bool:
        """Whether its call comes next."""
        return self.attempt is not None and self.outcome is None

    @property
    def fresh(self) -> bool:
        """Whether its begin comes next."""
        return self.attempt is None and self.outcome is None


@dataclass(slots=True)
class _Gateway:
    world: World
    place: Place
    process: Process
    deadline_seconds: float = DEADLINE_SECONDS
    topics: frozenset[str] = frozenset({TOPIC})

    @property
    def provider(self) -> str:
        return self.place.provider

    @property
    def account(self) -> str:
        return self.place.account

    def policy(self, topic: str) -> Policy:  # noqa: ARG002 - one for all
        return self.world.policy

    async def render(self, job: Job) -> Request:
        if UNRENDERABLE in job.payload:
            raise Unrenderable("payload.mail: not a mail")
        body = f"{self.provider}: template {self.world.template}: {job.payload}"
        return Request(job.effect_key, body.encode())

    async def call(
        self,
        wire_key: str,
        body: bytes | None,
        *,
        deadline_seconds: float,  # noqa: ARG002 - no time passes here
        may_start: Callable[[], bool],
    ) -> Answer:
        work, name = self.process.at_work, self.process.act
        assert work is not None
        if not may_start():
            return Answer(Meaning.UNREACHED, "not_started")
        work.act = name
        act = ACTS[name]
        if act.meaning is Meaning.UNREACHED:
            work.meaning = act.meaning
            return Answer(act.meaning, "connect_error")
        sent = Sent(self.place, wire_key, body or b"", work.job.id)
        self.world.leaves(self.process, work, sent, name)
        answer = self.world.provider.receive(sent, act)
        work.meaning = answer.meaning
        return answer

    async def close(self) -> None:
        """Nothing to close."""


@dataclass(slots=True)
class _Evidence:
    """The history decides whether a failure is the job's own."""

    own: bool = True

    def record(self, effect_key: str, *, real: bool, now: float) -> None:
        """Nothing to remember."""

    async def own_fault(self, *_: object, **__: object) -> bool:
        return self.own


@dataclass(slots=True)
class Process:
    """One consumer process: what it has in hand is all that it knows, and a crash forgets it."""

    bench: Bench
    world: World
    place: Place
    works: list[Work] = field(default_factory=list)
    at_work: Work | None = None
    act: str = "accepted"
    _consumer: Any = None
    _evidence: _Evidence = field(default_factory=_Evidence)

    def __post_init__(self) -> None:
        gateway = _Gateway(self.world, self.place, self)
        line = mock.patch.object(outbox.consumer, "Connection", return_value=self.bench.line)
        with line:
            self._consumer = Consumer("postgresql://", gateway, _SETTINGS, concurrency=8)
        self._consumer._evidence = self._evidence

    @property
    def name(self) -> str:
        return str(self._consumer.claimed_by)

    @property
    def leases(self) -> Leases:
        leases: Leases = self._consumer._leases
        return leases

    @property
    def _claims(self) -> Claims:
        claims: Claims = self._consumer._intake._claims
        return claims

    def claim(self, limit: int) -> list[Job]:
        """Look through the whole queue and claim what has no crash behind it."""
        self.bench.run(self._claims.scan())
        return self._have(self.bench.run(self._claims.take(limit)))

    def claim_crashed(self) -> list[Job]:
        """Look through the whole queue and claim one job whose lease ran out."""
        self.bench.run(self._claims.scan())
        job = self.bench.run(self._claims.take_crashed())
        return self._have([] if job is None else [job])

    def _have(self, jobs: Sequence[Job]) -> list[Job]:
        self.works += [Work(job) for job in jobs]
        return list(jobs)

    def begin(self, works: Sequence[Work], *, answer_lost: bool) -> list[Begin]:
        """Render, and write the intents in one batch, twice where the first answer was lost."""
        intents: list[Intent] = [self.bench.run(self._consumer._intent(w.job)) for w in works]
        begun: list[Begin] = []
        for _ in range(1 + answer_lost):
            begun = self.bench.run(self._consumer._begins._run(intents))
        for work, said in zip(works, begun, strict=True):
            if isinstance(said, Attempt):
                work.attempt = said
            elif isinstance(said, Outcome):
                work.outcome = said
            else:
                self.drop(work)
        return begun

    def call(self, work: Work, act: str, *, own: bool) -> Outcome:
        """Call the provider, where the last check allows it, and decide about the answer."""
        self.at_work, self.act, self._evidence.own = work, act, own
        work.outcome = self.bench.run(self._consumer._call(work.job, work.attempt, ""))
        assert work.outcome is not None
        return work.outcome

    def settle(self, works: Sequence[Work], *, answer_lost: bool) -> list[Settled]:
        """Write outcomes in one batch, twice where the first answer was lost; return the first."""
        settlements = []
        for work in works:
            assert work.outcome is not None
            self.leases.settling(work.job)
            settlements.append(Settlement(work.job, work.outcome))
        answers = [
            self.bench.run(self._consumer._settles._run(settlements))
            for _ in range(1 + answer_lost)
        ]
        for work in works:
            self.drop(work)
        settled: list[Settled] = answers[0]
        return settled

    def shut_down(self) -> list[Work]:
        """Stop: what has not begun is to be given back; return those."""
        self._consumer._stopping = True
        fresh = [work for work in self.works if work.fresh]
        for work in fresh:
            work.outcome = self.bench.run(self._consumer._outcome(work.job))
        return fresh

    def extend(self) -> list[int]:
        """A heartbeat; the ids of the jobs that it was told are lost."""
        return self.bench.run(self.leases.extend())

    def drop(self, work: Work) -> None:
        """Forget one claim."""
        self.leases.remove(work.job)
        self.works.remove(work)
