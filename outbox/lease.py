"""Leases as the consumer itself sees them: against its own boot-time clock, never the wall's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.job import Job


@dataclass(frozen=True, slots=True)
class _Id:
    id: int


class Leases:
    """The claims that this consumer holds, and until when as far as it can be sure.

    An end is counted from before the round trip that set it, so it is never later than the
    database's. What can't be extended runs out here by itself: no signal is needed to stop.
    """

    def __init__(self, connection: Connection, claimed_by: str, lease_seconds: float) -> None:
        self._connection = connection
        self._claimed_by = claimed_by
        self._seconds = lease_seconds
        self._ends: dict[int, float] = {}
        self._versions: dict[int, int] = {}
        self._settling: set[int] = set()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, jobs: Iterable[Job], since: float) -> None:
        """Take over fresh claims; ``since`` is the boot clock before the claim's round trip."""
        for job in jobs:
            self._ends[job.id] = since + self._seconds
            self._versions[job.id] = job.claim_version

    def remove(self, job: Job) -> None:
        """Forget a claim that is settled or lost."""
        if self._versions.get(job.id) == job.claim_version:
            del self._ends[job.id], self._versions[job.id]
            self._settling.discard(job.id)

    def settling(self, job: Job) -> None:
        """Its outcome is being written: that its row is gone by now is no loss."""
        self._settling.add(job.id)

    def allows(self, job: Job, seconds: float) -> bool:
        """Say whether something that takes ``seconds`` from now ends before the lease does."""
        if self._versions.get(job.id) != job.claim_version:
            return False
        return boot_seconds() + seconds <= self._ends[job.id]

    async def extend(self) -> list[int]:
        """Extend all leases by one heartbeat and return the ids of the jobs that are lost.

        Raises:
            DatabaseUnavailable: nothing was extended as far as we know; they run out by themselves.
        """
        versions = dict(self._versions)
        since = boot_seconds()
        rows = await self._connection.fetch(
            _Id,
            "extend_leases",
            job_ids=list(versions),
            claim_versions=list(versions.values()),
            claimed_by=self._claimed_by,
            lease_seconds=self._seconds,
        )
        extended = {row.id for row in rows}
        # Only those still held under the same claim: some were settled during the round trip.
        current = [id_ for id_, version in versions.items() if self._versions.get(id_) == version]
        for id_ in current:
            self._ends[id_] = since + self._seconds if id_ in extended else 0.0
        return [id_ for id_ in current if id_ not in extended and id_ not in self._settling]
