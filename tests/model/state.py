"""What the model's state is made of: rows, beliefs, the provider's memory, and the configurations.

Everything is a tuple, compared by value. Times are abstract: a lease holds or it does not; an age
counts ticks, each more than half of the provider's memory. At age 2 the ledger calls a key lapsed
and the provider may have forgotten it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from outbox.backoff import Backoff
from outbox.outcome import Policy
from outbox.verdict import Place

TICK_SECONDS, MEMORY_SECONDS, DEADLINE_SECONDS = 1000.0, 1900.0, 30.0
PLACE = Place("provider", "account", DEADLINE_SECONDS)
LAPSED = 2
#: In the place of a consumer that has crashed, or has given up its claim.
GONE = 9
LIVE = frozenset({"ready", "claimed", "backoff", "resolve"})

Action = tuple[str | int, ...]
Item = TypeVar("Item")


class Job(NamedTuple):
    """A job's row: its ``place`` is one of LIVE, or done (no row left), or how it ended."""

    place: str = "ready"
    version: int = 0
    by: int = GONE
    holds: bool = False
    attempts: int = 0
    reason: str | None = None
    expired: bool = False


class Effect(NamedTuple):
    """A ledger row. ``age`` is that of open_since; ``sole``: open_since = last_attempt_at.

    ``body`` counts the freezings of the request; ``frozen``: the request is still there.
    """

    job: int
    version: int
    sent: int = 1
    age: int | None = 0
    sole: bool = True
    state: str = "open"
    body: int = 0
    frozen: bool = True
    unreadable: bool = False


class Decision(NamedTuple):
    """An ``Outcome`` without its texts and delays."""

    action: str
    reason: str | None
    state: str | None
    seen: int
    nothing_open: bool
    refund: bool
    unreadable: bool


class Consumer(NamedTuple):
    """What a process believes of its claim and its try; a crash forgets it.

    ``phase``: begin, read, reopen, begun, cleared, calling, accepted or settle, the step that comes
    next. ``age`` is that of the earliest open try, ``None`` where the memory doesn't bind; before a
    read, how long it has been on its way (the code counts from before the round trip).
    """

    job: int
    version: int
    attempts: int
    phase: str
    sent: int = 0
    sole: bool = True
    age: int | None = None
    body: int = 0
    unreadable: bool = False
    expired: bool = False
    decision: Decision | None = None

    @property
    def in_memory(self) -> bool:
        """Whether the provider surely remembers the key of an earlier open try, if there is one."""
        return self.age is None or self.age < LAPSED


class Mail(NamedTuple):
    """The provider's side of one key. ``remembers`` the body and age of an accepted request.

    ``refuses``: the bodies that it has refused for good. ``under_way``: (job, body) of requests
    whose senders have given up. ``senders``: the jobs whose requests were accepted.
    """

    accepted: int = 0
    remembers: tuple[int, int] | None = None
    refuses: frozenset[int] = frozenset()
    under_way: tuple[tuple[int, int], ...] = ()
    senders: frozenset[int] = frozenset()


class Witness(NamedTuple):
    """What no part of the system sees of one key: it is there for the promises alone.

    ``faults`` and refusals that the effect has met; ``excuses``: e-mails more that a person or a
    documented exception allows; ``doubt``: a try may have been accepted without our knowing;
    ``vouched``: a person has said that it was delivered.
    """

    faults: int = 0
    excuses: int = 0
    doubt: bool = False
    vouched: bool = False


class Budget(NamedTuple):
    """How much may still go wrong."""

    faults: int
    ticks: int = 0
    people: int = 0
    lost_commits: int = 0


class State(NamedTuple):
    """One state of the whole; effects, mails and witnesses are one per key."""

    jobs: tuple[Job, ...]
    effects: tuple[Effect | None, ...]
    consumers: tuple[Consumer | None, ...]
    mails: tuple[Mail, ...]
    witnesses: tuple[Witness, ...]
    budget: Budget
    #: The job that a reaper has seen with a lapsed lease; only in the sabotage of that name.
    reaper: int | None = None

    def with_job(self, j: int, job: Job) -> State:
        return State(_put(self.jobs, j, job), *self[1:])

    def with_effect(self, key: int, effect: Effect | None) -> State:
        return State(self[0], _put(self.effects, key, effect), *self[2:])

    def with_consumer(self, c: int, me: Consumer | None) -> State:
        """Who believes in no claim any more is its job's holder in name only."""
        jobs = self.jobs
        if me is None:
            jobs = tuple(job._replace(by=GONE) if job.by == c else job for job in jobs)
        return State(jobs, self.effects, _put(self.consumers, c, me), *self[3:])

    def with_mail(self, key: int, mail: Mail) -> State:
        return State(*self[:3], _put(self.mails, key, mail), *self[4:])

    def note(
        self,
        key: int,
        *,
        faults: int = 0,
        excuses: int = 0,
        doubt: bool | None = None,
        vouched: bool = False,
    ) -> State:
        """Let the witness of a key see something."""
        old = self.witnesses[key]
        new = Witness(
            faults=old.faults + faults,
            excuses=old.excuses + excuses,
            doubt=old.doubt if doubt is None else doubt,
            vouched=old.vouched or vouched,
        )
        return self._replace(witnesses=_put(self.witnesses, key, new))

    def fault(self, key: int) -> State:
        """Spend one fault of the budget on an effect, in sight of its witness."""
        left = self.budget._replace(faults=self.budget.faults - 1)
        return self.note(key, faults=1)._replace(budget=left)


def _put(items: tuple[Item, ...], index: int, item: Item) -> tuple[Item, ...]:
    return (*items[:index], item, *items[index + 1 :])


_BUDGET = Budget(3)


@dataclass(frozen=True)
class World:
    """One configuration. ``keys`` names each job's effect, ``without`` what is sabotaged.

    ``one_process``: the consumers are tasks of one process, which have the name in common and die
    together. ``expires``: jobs may pass their expires_at. ``stops``: a process may be stopped
    between its last check and its first byte. ``idle``: also the steps that change nothing (for the
    replay on the real code).
    """

    keys: tuple[int, ...] = (0, 0)
    consumers: int = 3
    max_attempts: int = 3
    replays: bool = True
    repeat: bool = False
    one_process: bool = False
    expires: bool = False
    stops: bool = False
    idle: bool = False
    without: str = ""
    budget: Budget = _BUDGET

    def __str__(self) -> str:
        keys = " and ".join(f"job of key {key}" for key in self.keys)
        provider = "keys replayed" if self.replays else "no keys"
        words = [keys, f"{self.consumers} consumers", f"{self.max_attempts} attempts", provider]
        words += [
            name for name in ("repeat", "one_process", "expires", "stops") if getattr(self, name)
        ]
        words += [f"{count} {name}" for name, count in self.budget._asdict().items() if count]
        return ", ".join(words) + (f", without {self.without}" if self.without else "")

    @cached_property
    def policy(self) -> Policy:
        """The shipped policy of this configuration."""
        memory = float("inf") if self.without == "memory window" else MEMORY_SECONDS
        cap = 10**6 if self.without == "attempt cap" else self.max_attempts
        return Policy(memory if self.replays else None, self.repeat, cap, Backoff(0, 0))

    def start(self) -> State:
        """Return the state in which all jobs have been committed and nobody has looked yet."""
        keys = max(self.keys) + 1
        return State(
            jobs=(Job(),) * len(self.keys),
            effects=(None,) * keys,
            consumers=(None,) * self.consumers,
            mails=(Mail(),) * keys,
            witnesses=(Witness(),) * keys,
            budget=self.budget,
        )
