"""What an operator asks first: how much waits, since when, and whether anybody works on it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from outbox.operator import ANSWER_SECONDS, Operator


@dataclass(frozen=True, slots=True)
class SeenConsumer:
    """A consumer that was seen lately: a hint, not a proof."""

    claimed_by: str
    topics: list[str]
    started_at: datetime
    seen_until: datetime


@dataclass(frozen=True, slots=True)
class Counts:
    """Jobs by state for people.

    ``unserved`` are the ready ones whose topic no consumer that was seen lately serves. Ages are in
    seconds; ``None`` where there is no such job.
    """

    ready: int
    scheduled: int
    backing_off: int
    running: int
    blocked: int
    held: int
    dead: int
    cancelled: int
    unserved: int
    oldest_ready_seconds: float | None
    oldest_dead_seconds: float | None


@dataclass(frozen=True, slots=True)
class Status:
    """The counts over all topics and for each, and who is there.

    ``oldest_held_seconds`` counts from the last request of the held effect that is silent longest.
    """

    total: Counts
    topics: dict[str, Counts]
    held_effects: int
    oldest_held_seconds: float | None
    consumers: list[SeenConsumer]


@dataclass(frozen=True, slots=True)
class _Counted:
    topic: str
    state: str
    jobs: int
    oldest_seconds: float
    served: bool


@dataclass(frozen=True, slots=True)
class _HeldEffects:
    effects: int
    oldest_seconds: float | None


def status(operator: Operator, seconds: float = ANSWER_SECONDS) -> Status:
    """Count, by one look at the tables.

    Raises:
        DatabaseUnavailable: the counts did not come within ``seconds``.
    """
    with operator.turn(seconds):
        counted = operator.fetch(_Counted, "count_jobs")
        held = operator.fetch(_HeldEffects, "count_held_effects")[0]
        consumers = operator.fetch(SeenConsumer, "list_consumers")
    topics = sorted({row.topic for row in counted})
    return Status(
        total=_counts(counted),
        topics={topic: _counts(row for row in counted if row.topic == topic) for topic in topics},
        held_effects=held.effects,
        oldest_held_seconds=held.oldest_seconds,
        consumers=consumers,
    )


def _counts(counted: Iterable[_Counted]) -> Counts:
    rows = list(counted)

    def jobs(state: str) -> int:
        return sum(row.jobs for row in rows if row.state == state)

    def oldest(state: str) -> float | None:
        return max((row.oldest_seconds for row in rows if row.state == state), default=None)

    return Counts(
        ready=jobs("ready"),
        scheduled=jobs("scheduled"),
        backing_off=jobs("backing_off"),
        running=jobs("running"),
        blocked=jobs("blocked"),
        held=jobs("held"),
        dead=jobs("dead"),
        cancelled=jobs("cancelled"),
        unserved=sum(row.jobs for row in rows if row.state == "ready" and not row.served),
        oldest_ready_seconds=oldest("ready"),
        oldest_dead_seconds=oldest("dead"),
    )
