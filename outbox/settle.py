"""Settling: the outcome of each attempt written in one fenced statement."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from outbox.connection import Connection
from outbox.job import Job
from outbox.outcome import Outcome

_encode = json.JSONEncoder(check_circular=False).encode
#: What a provider says of an error is kept up to this many characters.
DETAIL_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Settlement:
    """One attempt and its outcome."""

    job: Job
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """What the statement did with the outcome of this ``number`` (from 1, in the order given):
    whether the claim still held, and whether the ledger was written.
    """

    number: int
    claim_held: bool
    effect_written: bool


class Settler:
    """Writes outcomes in batches."""

    def __init__(self, connection: Connection, claimed_by: str) -> None:
        self._connection = connection
        self._claimed_by = claimed_by

    async def settle(self, settlements: Sequence[Settlement]) -> list[Settled]:
        """Write the outcomes; in the order given.

        A claim that no longer holds changes nothing, but for an acceptance in hand. Running it
        again after a lost answer is safe: what was written is not written twice.

        Raises:
            DatabaseUnavailable: not known to be written; settle again.
        """
        return await self._connection.fetch(
            Settled,
            "settle_attempts",
            outcomes=as_json(settlements),
            claimed_by=self._claimed_by,
        )


def as_json(settlements: Sequence[Settlement]) -> str:
    """Return them as the statement reads them: one text costs less than twelve arrays."""
    return _encode([_row(settlement) for settlement in settlements])


def _row(settlement: Settlement) -> dict[str, object]:
    job, outcome = settlement.job, settlement.outcome
    return {
        "job_id": job.id,
        "claim_version": job.claim_version,
        "effect_key": job.effect_key,
        "requests_seen": outcome.requests_seen,
        "effect_state": outcome.effect_state,
        "nothing_open": outcome.nothing_open,
        "message_id": storable(outcome.message_id),
        "job_action": outcome.job_action,
        "refund": outcome.refund,
        "delay_seconds": outcome.delay_seconds,
        "reason": storable(outcome.reason),
        "detail": storable(outcome.detail),
    }


def storable(text: str | None) -> str | None:
    """Return a foreign text as the database takes it: no NUL, no lone surrogate, bounded."""
    if text is None:
        return None
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean[:DETAIL_CHARACTERS_MAX]
