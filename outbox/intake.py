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
from outbox.under_way import UnderWay
from outbox.wake import Wake

_log = logging.getLogger(__name__)

#: Free slots are filled together, once they are half of all in use; or after so long in any case,
#: so that calls which hang keep nobody from the slots that are free.
_PATIENCE_SECONDS = 0.05
#: So many jobs a second, over the last half second or so, are a flow. While it lasts the queue is
#: looked at in this rhythm, and no enqueue pays for a hint.
_FLOW_BEGINS, _FLOW_ENDS = 100.0, 50.0
_FLOW_MEMORY_SECONDS = 0.5
_FLOW_LOOK_SECONDS = 0.02


class Intake:
    """Fills the free slots of a lane from the queue.

    ``jobs_max``: so many may be under way in all, those included that wait to be settled.
    """

    def __init__(
        self,
        claims: Claims,
        lane: Lane,
        wake: Wake,
        under_way: UnderWay,
        *,
        jobs_max: int,
        poll_seconds: float,
    ) -> None:
        self._claims = claims
        self._lane = lane
        self._wake = wake
        self._under_way = under_way
        self._jobs_max = jobs_max
        self._poll_seconds = poll_seconds
        self._took_at = 0.0
        self._jobs_per_second = 0.0
        self._flowing = False
        self._full = True
        self._hinted = False
        #: Whether the last claim found less than could start: there is no more for now.
        self.dry = False

    def nudge(self) -> None:
        """Something has changed (the consumer stops, or has nothing under way): end the rest."""
        self._wake.hint.set()

    def slot_free(self) -> None:
        """A call has ended, or is settled: end the rest if it was waiting for that."""
        if self._full and self._worth_a_claim(boot_seconds()):
            self.nudge()

    def after_outage(self) -> None:
        """The database was away: hints were missed and leases may have run out."""
        self._claims.scan_soon()

    async def take(self) -> Sequence[Job]:
        """Claim what can start now; empty when nothing can, or nothing is there.

        Raises:
            DatabaseUnavailable: nothing is known to be claimed.
        """
        hinted, self._hinted = self._hinted, False
        slots = self._worth_a_claim(boot_seconds())
        # What a hint speaks of is not kept waiting for a scan, which comes right after that.
        if self._claims.scan_due and not (hinted and slots):
            await self._claims.keep_up()
        now = boot_seconds()
        if self._claims.crashed_waiting:
            return await self._take_crashed(now)
        self._full, self.dry = slots == 0, False
        if slots == 0:
            return []
        since, self._took_at = now - self._took_at, now
        jobs = await self._claims.take(slots, new_work_only=self._lane.probes_new_work)
        self._note_flow(len(jobs), since)
        self.dry = len(jobs) < slots
        if self._flowing or not self.dry:
            await self._wake.awake()
        return self._started(jobs, now)

    async def rest(self) -> Sequence[Job]:
        """Wait for a hint, a free slot or the next poll; return what a last look before it found.

        Raises:
            DatabaseUnavailable: see ``take``.
        """
        if self._claims.scan_due:
            return []
        seconds = self._poll_seconds * (0.8 + 0.4 * random())
        now = boot_seconds()
        if (closed := self._lane.wait_seconds(now)) > 0:
            self._full = True
            seconds = min(seconds, closed)
        elif self._full:
            if self._slots(now) and not self._claims.crashed_waiting:
                seconds = min(seconds, max(0.0, self._took_at + _PATIENCE_SECONDS - now))
        elif self._flowing:
            await asyncio.sleep(_FLOW_LOOK_SECONDS)
            return []
        elif not self._wake.said_asleep(seconds):
            await self._wake.note(sleep_seconds=3 * self._poll_seconds)
            # The last look after saying so: what was committed before it has sent no hint.
            if jobs := await self.take():
                return jobs
        await self.pause(seconds)
        return []

    async def pause(self, seconds: float) -> None:
        """Wait up to ``seconds`` for a nudge or a hint."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.hint.wait()
                self._hinted = True
        except TimeoutError:
            return
        finally:
            self._wake.hint.clear()

    def _slots(self, now: float) -> int:
        """How many jobs can start now."""
        room = self._jobs_max - self._under_way.jobs
        return max(0, min(room, self._lane.slots(self._under_way.unanswered, now)))

    def _worth_a_claim(self, now: float) -> int:
        """How many to claim now; 0 also where waiting for more slots is better."""
        slots = self._slots(now)
        worth = slots >= self._under_way.unanswered or now >= self._took_at + _PATIENCE_SECONDS
        return slots if worth else 0

    def _note_flow(self, found: int, seconds: float) -> None:
        weight = min(1.0, seconds / _FLOW_MEMORY_SECONDS)
        rate = found / max(seconds, 0.001)
        self._jobs_per_second += weight * (rate - self._jobs_per_second)
        bound = _FLOW_ENDS if self._flowing else _FLOW_BEGINS
        self._flowing = self._jobs_per_second >= bound

    async def _take_crashed(self, now: float) -> Sequence[Job]:
        """A job that may kill its worker is tried alone, so that it takes nobody with it twice."""
        self._full = True
        if self._under_way.jobs or not self._slots(now):
            return []
        job = await self._claims.take_crashed()
        if job is None:
            self.nudge()
            return []
        _log.info("job %d: its last claim ended in a crash; tried alone", job.id)
        return self._started([job], now)

    def _started(self, jobs: Sequence[Job], now: float) -> Sequence[Job]:
        for _ in jobs:
            self._lane.started(now)
        return jobs
