"""Claiming: which jobs to take next, from where in the queue, and when to look through it all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.job import Job
from outbox.lease import Leases

_LOWEST = -(2**63)
_HIGHEST = 2**63 - 1
#: Promoting what is due may take this share of the time at most (one in twenty).
_PROMOTION_SHARE = 20
#: Looking from the bottom steps over all dead entries, twice, and the next claim once more; claims
#: wait for it. So it may take one in two hundred: the slowest hundredth of jobs doesn't feel it.
_SCAN_SHARE = 200
_PROMOTED_AT_ONCE = 1000
#: Crashed claims are looked for among so many live jobs at the front of each lane: more than can be
#: running, and few enough to look through every second.
_FRONT = 5000


class _Lane(NamedTuple):
    topic: str
    priority: int


@dataclass(frozen=True, slots=True)
class _Found:
    found: bool


@dataclass(frozen=True, slots=True)
class _Topic:
    topic: str


class Claims:
    """The consumer's view of the queue: per topic and priority a floor, the lowest position of its
    last claim, where the next one starts; so that dead index entries are stepped over once.

    Scans let due jobs in, and start from the bottom to find what floors miss: late commits, jobs
    that come before new work, new priorities, crashed claims. They come by time alone.
    """

    def __init__(
        self,
        connection: Connection,
        leases: Leases,
        claimed_by: str,
        topics: Iterable[str],
        *,
        lease_seconds: float,
        poll_seconds: float,
    ) -> None:
        self._connection = connection
        self._leases = leases
        self._claimed_by = claimed_by
        self._topics = sorted(topics)
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._floors: dict[_Lane, int] = {}
        self._turn = 0
        self._next_scan = 0.0
        self._next_look = 0.0
        self.crashed_waiting = False

    @property
    def scan_due(self) -> bool:
        """Whether it is time for a scan."""
        return boot_seconds() >= self._next_scan

    def scan_soon(self) -> None:
        """Ask for a full scan at the next turn (after a reconnect)."""
        self._next_scan = self._next_look = 0.0

    async def scan(self) -> None:
        """Let due jobs in, and look from the bottom."""
        self.scan_soon()
        await self.keep_up()

    async def keep_up(self) -> None:
        """Let due jobs in, and look from the bottom where it is time for that."""
        started = boot_seconds()
        if await self.promote():
            # What goes before all new work lies below the floors.
            self._floors = dict.fromkeys(self._floors, _LOWEST)
        spent = boot_seconds() - started
        self._next_scan = started + max(self._poll_seconds, _PROMOTION_SHARE * spent)
        if started >= self._next_look:
            await self._look()

    async def _look(self) -> None:
        """Learn the lanes, start from the bottom, look for crashed claims."""
        started = boot_seconds()
        lanes = await self._connection.fetch(_Lane, "list_lanes", topics=self._topics)
        self._floors = dict.fromkeys(lanes, _LOWEST)
        self.crashed_waiting = await self._find_crashed()
        spent = boot_seconds() - started
        # A little before the scan that it is to come with.
        self._next_look = started + max(0.9 * self._poll_seconds, _SCAN_SHARE * spent)

    async def promote(self) -> int:
        """Give a place in the queue to what has waited long enough; how many jobs that were."""
        promoted = 0
        for statement in ("promote_due_jobs", "release_ordered_jobs", "release_held_jobs"):
            at_once = _PROMOTED_AT_ONCE
            while at_once == _PROMOTED_AT_ONCE:
                rows = await self._connection.fetch(_Topic, statement, limit=_PROMOTED_AT_ONCE)
                at_once = len(rows)
                promoted += at_once
        return promoted

    async def take(self, limit: int, *, new_work_only: bool = False) -> Sequence[Job]:
        """Claim up to ``limit`` jobs that have no crash behind them.

        ``new_work_only`` passes over those that go before new work since their effect is open.
        """
        lanes = self._ordered_lanes()
        lowest = 0 if new_work_only else _LOWEST
        since = boot_seconds()
        jobs = await self._connection.fetch(
            Job,
            "claim_jobs",
            topics=[lane.topic for lane in lanes],
            priorities=[lane.priority for lane in lanes],
            floors=[max(lowest, self._floors.get(lane, _LOWEST)) for lane in lanes],
            limit=limit,
            claimed_by=self._claimed_by,
            lease_seconds=self._lease_seconds,
        )
        self._leases.add(jobs, since)
        self._move_floors(jobs)
        return sorted(jobs, key=lambda job: (job.priority, job.position))

    async def take_crashed(self) -> Job | None:
        """Claim one job whose last claim ended in a crash, to be tried alone."""
        since = boot_seconds()
        jobs = await self._connection.fetch(
            Job,
            "claim_crashed_job",
            topics=[lane.topic for lane in self._floors],
            priorities=[lane.priority for lane in self._floors],
            limit=_FRONT,
            claimed_by=self._claimed_by,
            lease_seconds=self._lease_seconds,
        )
        self._leases.add(jobs, since)
        self.crashed_waiting = bool(jobs)
        return jobs[0] if jobs else None

    async def any_pending(self) -> bool:
        """Whether anything is left that comes to its end by itself."""
        rows = await self._connection.fetch(_Found, "find_pending_job", topics=self._topics)
        return rows[0].found

    async def _find_crashed(self) -> bool:
        rows = await self._connection.fetch(
            _Found,
            "find_crashed_job",
            topics=[lane.topic for lane in self._floors],
            priorities=[lane.priority for lane in self._floors],
            limit=_FRONT,
        )
        return rows[0].found

    def _ordered_lanes(self) -> list[_Lane]:
        """Lower priority numbers first; topics of one priority take turns in front."""
        lanes = {*self._floors, *(_Lane(topic, 0) for topic in self._topics)}
        self._turn += 1
        shift = self._turn % max(len(self._topics), 1)
        rank = {topic: (i - shift) % len(self._topics) for i, topic in enumerate(self._topics)}
        return sorted(lanes, key=lambda lane: (lane.priority, rank[lane.topic]))

    def _move_floors(self, jobs: Sequence[Job]) -> None:
        lowest: dict[_Lane, int] = {}
        for job in jobs:
            lane = _Lane(job.topic, job.priority)
            if job.position < lowest.get(lane, _HIGHEST):
                lowest[lane] = job.position
        self._floors.update(lowest)
