"""A shipped ``Consumer`` in a seat: its own story of one job, with an obedient provider."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Callable
from typing import Any
from unittest import mock

import outbox.consumer
from outbox.claim import Claims
from outbox.consumer import Consumer
from outbox.errors import DatabaseUnavailable
from outbox.job import Job, Request
from outbox.lease import Leases
from outbox.outcome import Answer, Meaning, Policy
from outbox.settings import OutboxSettings
from tests.model.seat import END, HeldConnection, Line, Seat
from tests.model.state import DEADLINE_SECONDS, World

TOPIC = "email.order_confirmation"
#: The trace decides when a lease runs out, never the clock.
LEASE_SECONDS = 86_400.0
CALL = "call"
SETTINGS = OutboxSettings(lease_seconds=LEASE_SECONDS)


class ObedientProvider:
    """A gateway whose calls are held in the seat: at the last check, and at the answer."""

    provider, account, topics = "provider", "account", frozenset({TOPIC})
    deadline_seconds = DEADLINE_SECONDS

    def __init__(self, w: World, seat: Seat) -> None:
        self._policy = w.policy
        self._seat = seat
        self.key = ""
        self.body_hash = b""

    def policy(self, topic: str) -> Policy:  # noqa: ARG002 - one for all
        return self._policy

    async def render(self, job: Job) -> Request:
        """Never the same bytes twice, so that a try which is not the frozen one is seen."""
        return Request(job.effect_key, f"job {job.id}, claim {job.claim_version}".encode())

    async def call(
        self,
        wire_key: str,
        body: bytes | None,
        *,
        deadline_seconds: float,  # noqa: ARG002 - it ends when the trace says so
        may_start: Callable[[], bool],
    ) -> Answer:
        self.key, self.body_hash = wire_key, hashlib.sha256(body or b"").digest()
        order = await self._seat.order(CALL)
        if order == "leave":
            assert may_start(), "the last check before the first byte says no"
            order = await self._seat.order(CALL)
        return answer(order)

    async def close(self) -> None:
        """Nothing to close."""


def answer(meaning: str) -> Answer:
    """Return what a provider says; with an id where it has accepted."""
    return Answer(
        Meaning[meaning], meaning.lower(), message_id="id" if meaning == "ACCEPTED" else None
    )


class OwnFault:
    """Evidence that takes every failure for the job's own (UNAVAILABLE stands for an outage's)."""

    def record(self, effect_key: str, *, real: bool, now: float) -> None:
        """Nothing to remember."""

    async def own_fault(self, *_: object, **__: object) -> bool:
        return True


class Process:
    """One consumer process, until it crashes; or a task of one, where several have its name."""

    def __init__(self, w: World, line: Line, token: str) -> None:
        self.seat = Seat()
        self.provider = ObedientProvider(w, self.seat)
        held = HeldConnection(line, self.seat)
        with (
            mock.patch.object(outbox.consumer, "Connection", return_value=held),
            mock.patch.object(secrets, "token_hex", return_value=token),
        ):
            self._consumer = Consumer("postgresql://", self.provider, SETTINGS, concurrency=1)
        parts: Any = self._consumer
        parts._evidence = OwnFault()
        self.claims: Claims = parts._intake._claims
        self.leases: Leases = parts._leases
        self.name = self._consumer.claimed_by
        self._services = [
            asyncio.create_task(part.serve()) for part in (parts._begins, parts._settles)
        ]
        self._work: asyncio.Task[None] | None = None
        self.job: Job | None = None

    async def claim(self, *, crashed: bool) -> None:
        """Claim the one job that is free, and begin to work on it."""
        await self._look(crashed=crashed)
        if crashed:
            job = await self.claims.take_crashed()
        else:
            (job,) = await self.claims.take(1)
        assert job is not None, "there is a crashed claim to take"
        self.job = job
        self._work = asyncio.create_task(self._consumer._work(job))
        self._work.add_done_callback(self._end)

    async def lose_claim(self, *, crashed: bool) -> None:
        """Claim the one job that is free, without ever learning of it."""
        await self._look(crashed=crashed)
        self.seat.loses_claims = True
        take = self.claims.take_crashed() if crashed else self.claims.take(1)
        try:
            await take
        except DatabaseUnavailable:
            self.seat.loses_claims = False
        else:
            raise AssertionError("the answer was to be lost")

    async def _look(self, *, crashed: bool) -> None:
        """What comes before a claim: an empty one before a crashed one, and a full scan."""
        if crashed:
            assert not await self.claims.take(1)
        await self.claims.scan()

    def _end(self, work: asyncio.Task[None]) -> None:
        error = None if work.cancelled() else work.exception()
        self.seat.end(END if error is None else f"{END}: {error!r}")

    async def ended(self) -> None:
        """Wait for the end of the story, and be ready for another job."""
        await self.seat.expect(END)
        assert self._work is not None, "there was a story"
        await self._work
        self.job = self._work = None
        self.seat.reset()

    async def crash(self) -> None:
        """Forget everything; what was sent is sent."""
        tasks = [task for task in (self._work, *self._services) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
