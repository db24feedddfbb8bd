"""The intake: what to take from the queue next, and when to rest.

No more is claimed than can start now: claimed means started, so a claim may charge its attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import random

from outbox.claim import Claims
from outbox.clock import boot_seconds
from outbox.job import Job
from outbox.lane import Lane
from outbox.wake import Wake

_log = logging.getLogger(__name__)


class Intake:
    """Fills the free slots of a lane from the queue."""

    def __init__(self, claims: Claims, lane: Lane, wake: Wake, poll_seconds: float) -> None:
        self._claims = claims
        self._lane = lane
        self._wake = wake
        self._poll_seconds = poll_seconds

    def nudge(self) -> None:
        """Something has changed (a slot is free, the consumer stops): end the rest."""
        self._wake.hint.set()

    def after_outage(self) -> None:
        """The database was away: hints were missed and leases may have run out."""
        self._claims.scan_soon()

    async def take(self, in_flight: int) -> Sequence[Job]:
        """Claim what can start beside ``in_flight`` jobs; empty when nothing can or is there.

        Raises:
            DatabaseUnavailable: nothing is known to be claimed.
        """
        if self._claims.scan_due:
            await self._claims.scan()
        slots = self._lane.slots(in_flight, boot_seconds())
        if self._claims.crashed_waiting:
            return await self._take_crashed(in_flight, slots)
        if slots == 0:
            return []
        jobs = await self._claims.take(slots, new_work_only=self._lane.probes_new_work)
        if len(jobs) == slots:
            await self._wake.awake()
        return self._started(jobs)

    async def rest(self, in_flight: int) -> Sequence[Job]:
        """Wait for a hint, a free slot or the next poll; return what a last look before it found.

        Raises:
            DatabaseUnavailable: see ``take``.
        """
        seconds = self._poll_seconds * (0.8 + 0.4 * random())
        now = boot_seconds()
        if (closed := self._lane.wait_seconds(now)) > 0:
            await self.pause(min(seconds, closed))
            return []
        if self._lane.slots(in_flight, now) > 0 and not self._wake.said_asleep(seconds):
            await self._wake.note(sleep_seconds=3 * self._poll_seconds)
            # The last look after saying so: what was committed before it has sent no hint.
            if jobs := await self.take(in_flight):
                return jobs
        await self.pause(seconds)
        return []

    async def pause(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a nudge or a hint."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.hint.wait()
        except TimeoutError:
            return
        finally:
            self._wake.hint.clear()

    async def _take_crashed(self, in_flight: int, slots: int) -> Sequence[Job]:
        """A job that may kill its worker is tried alone, so that it takes nobody with it twice."""
        if in_flight or slots == 0:
            return []
        job = await self._claims.take_crashed()
        if job is None:
            self.nudge()
            return []
        _log.info("job %d: its last claim ended in a crash; tried alone", job.id)
        return self._started([job])

    def _started(self, jobs: Sequence[Job]) -> Sequence[Job]:
        for _ in jobs:
            self._lane.started(boot_seconds())
        return jobs
