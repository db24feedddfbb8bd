"""A person's decision about held effects: proven, to be sent again, or given up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from outbox.inspection import EffectRecord, list_effects, read_effects
from outbox.operator import Operator

#: So many effects are decided in one transaction.
_BATCH = 200


class Resolution(StrEnum):
    """What a person decided."""

    #: The provider's records prove it: it was sent.
    DELIVERED = "delivered"
    #: Send it again, with the frozen request and its key: this may make a second one.
    SEND_AGAIN = "send_again"
    #: Neither sent again nor looked for any more.
    GIVE_UP = "give_up"


@dataclass(frozen=True, slots=True)
class Resolved:
    """What became of one key.

    ``state`` is the ledger's word afterwards, ``None`` for an unknown key. ``done`` is false when
    the effect was not held: it never was, or somebody else was faster. ``jobs`` counts those that
    waited beside it.
    """

    effect_key: str
    done: bool
    state: str | None
    jobs: int


@dataclass(frozen=True, slots=True)
class _WaitingJob:
    id: int
    effect_key: str


@dataclass(frozen=True, slots=True)
class _Written:
    effect_key: str
    topic: str


def held_effects(
    operator: Operator, *, topic: str | None, before: datetime | None, limit: int
) -> list[EffectRecord]:
    """Return the held effects of a topic, or whose last request began before a moment, or both."""
    return list_effects(operator, state="held", topic=topic, before=before, after="", limit=limit)


def preview(operator: Operator, effect_keys: Sequence[str]) -> list[Resolved]:
    """Say what ``resolve`` would find, and change nothing."""
    states = {effect.effect_key: effect.state for effect in read_effects(operator, effect_keys)}
    return [Resolved(key, states.get(key) == "held", states.get(key), 0) for key in effect_keys]


def resolve(
    operator: Operator,
    effect_keys: Sequence[str],
    resolution: Resolution,
    message_id: str | None = None,
) -> list[Resolved]:
    """Write the decision for each key that is held, and settle the jobs that wait beside it.

    Two people at once: one's decision is written, the other is told. After ``SEND_AGAIN`` nothing
    counts as open any more; the next try begins it anew.
    """
    results: list[Resolved] = []
    for start in range(0, len(effect_keys), _BATCH):
        results += _batch(operator, effect_keys[start : start + _BATCH], resolution, message_id)
    return results


def _batch(
    operator: Operator, effect_keys: Sequence[str], resolution: Resolution, message_id: str | None
) -> list[Resolved]:
    keys = list(effect_keys)
    with operator.turn():
        waiting = operator.fetch(_WaitingJob, "lock_held_jobs", effect_keys=keys)
        written = operator.fetch(
            _Written,
            "resolve_effects",
            effect_keys=keys,
            job_ids=[job.id for job in waiting],
            resolution=str(resolution),
            message_id=message_id,
            detail=f"resolved by a person as {resolution}",
        )
        operator.wake({row.topic for row in written})
    done = {row.effect_key for row in written}
    jobs = Counter(job.effect_key for job in waiting)
    states = {effect.effect_key: effect.state for effect in read_effects(operator, keys)}
    return [Resolved(key, key in done, states.get(key), jobs[key]) for key in keys]
