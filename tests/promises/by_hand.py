"""A consumer taken apart: its own classes and statements, moved one step at a time by a test."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Self

from outbox.backoff import Backoff
from outbox.claim import Claims
from outbox.connection import Connection
from outbox.job import Attempt, EffectState, Job, Request
from outbox.lease import Leases
from outbox.ledger import Begin, Intent, Ledger
from outbox.outcome import JobAction, Outcome, Policy
from outbox.settle import Settled, Settlement, Settler
from outbox.verdict import Place
from tests.promises.scripted import DAY, TOPIC

if TYPE_CHECKING:
    from types import TracebackType

LEASE_SECONDS = 30.0
PLACE = Place("scripted", "stage", 0.5)
POLICY = Policy(DAY, False, 5, Backoff(0.01, 0.05))


class ByHand:
    """Claims, begins, extends and settles as a consumer does, when a test says so."""

    def __init__(
        self,
        database_url: str,
        *,
        name: str = "by-hand",
        lease_seconds: float = LEASE_SECONDS,
        policy: Policy = POLICY,
        place: Place = PLACE,
        topics: tuple[str, ...] = (TOPIC,),
    ) -> None:
        self.claimed_by = f"{name}:{secrets.token_hex(4)}"
        self.connection = Connection(database_url, f"test {self.claimed_by}")
        self.leases = Leases(self.connection, self.claimed_by, lease_seconds)
        self.claims = Claims(
            self.connection,
            self.leases,
            self.claimed_by,
            topics,
            lease_seconds=lease_seconds,
            poll_seconds=0.05,
        )
        self.ledger = Ledger(self.connection, self.claimed_by, place, lambda _: policy)
        self.settler = Settler(self.connection, self.claimed_by)

    async def claim(self, limit: int = 10) -> list[Job]:
        """Claim jobs without a crash behind them, after a full scan."""
        await self.claims.scan()
        return list(await self.claims.take(limit))

    async def claim_one(self) -> Job:
        """Claim the one job that is ready."""
        jobs = await self.claim()
        assert len(jobs) == 1
        return jobs[0]

    async def claim_crashed(self) -> Job | None:
        """Claim a job whose lease ran out."""
        await self.claims.scan()
        return await self.claims.take_crashed()

    async def begin(self, job: Job, body: bytes = b"body") -> Begin:
        """Write the intent of a job's effect."""
        return (await self.begin_all(job, body=body))[0]

    async def begin_all(self, *jobs: Job, body: bytes = b"body") -> list[Begin]:
        """Write the intents of several jobs in one batch."""
        return await self.ledger.begin([Intent(job, Request(job.effect_key, body)) for job in jobs])

    async def begun(self, job: Job, body: bytes = b"body") -> Attempt:
        """Write the intent of a job's effect, which must be allowed."""
        attempt = await self.begin(job, body)
        assert isinstance(attempt, Attempt), attempt
        return attempt

    async def settle(self, job: Job, outcome: Outcome) -> Settled:
        """Write a job's outcome."""
        return (await self.settler.settle([Settlement(job, outcome)]))[0]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.connection.close()


def older(job: Job) -> Job:
    """The same job as an earlier claim knew it."""
    return replace(job, claim_version=job.claim_version - 1)


async def deliver(one: ByHand, job: Job) -> Settled:
    """Begin and settle a job whose call the provider accepts."""
    attempt = await one.begun(job)
    return await one.settle(job, delivered(attempt))


def delivered(attempt: Attempt) -> Outcome:
    """What a consumer settles after an acceptance."""
    return Outcome(
        JobAction.DONE,
        effect_state=EffectState.DELIVERED,
        requests_seen=attempt.requests_sent,
        nothing_open=True,
        message_id="accepted-id",
    )
