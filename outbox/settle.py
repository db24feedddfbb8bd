"""Settling: the outcome of each attempt written in one fenced statement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.connection import Connection
from outbox.job import Job
from outbox.outcome import Outcome

#: What a provider says of an error is kept up to this many characters.
DETAIL_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Settlement:
    """One attempt and its outcome."""

    job: Job
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Settled:
    """What the statement did: whether the claim still held, and whether the ledger was written."""

    job_id: int
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
        outcomes = [settlement.outcome for settlement in settlements]
        jobs = [settlement.job for settlement in settlements]
        rows = await self._connection.fetch(
            Settled,
            "settle_attempts",
            job_ids=[job.id for job in jobs],
            claim_versions=[job.claim_version for job in jobs],
            effect_keys=[job.effect_key for job in jobs],
            requests_seen=[outcome.requests_seen for outcome in outcomes],
            effect_states=[outcome.effect_state for outcome in outcomes],
            nothing_open=[outcome.nothing_open for outcome in outcomes],
            message_ids=[storable(outcome.message_id) for outcome in outcomes],
            job_actions=[str(outcome.job_action) for outcome in outcomes],
            refunds=[outcome.refund for outcome in outcomes],
            delays_seconds=[outcome.delay_seconds for outcome in outcomes],
            reasons=[storable(outcome.reason) for outcome in outcomes],
            details=[storable(outcome.detail) for outcome in outcomes],
            claimed_by=self._claimed_by,
        )
        by_job = {row.job_id: row for row in rows}
        return [by_job[job.id] for job in jobs]


def storable(text: str | None) -> str | None:
    """Return a foreign text as the database takes it: no NUL, no lone surrogate, bounded."""
    if text is None:
        return None
    clean = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
    return clean[:DETAIL_CHARACTERS_MAX]
