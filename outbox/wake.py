"""Waking up: LISTEN as a hint only. An enqueue notifies while somebody says that it sleeps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

import psycopg

from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.errors import DatabaseUnavailable

_log = logging.getLogger(__name__)

#: A listening connection that heard nothing for so long is asked whether it still lives.
_PROBE_SECONDS = 20.0
_RECONNECT_SECONDS = 2.0


class Wake:
    """Tells enqueuers that this consumer sleeps, and sets ``hint`` when one of them calls."""

    def __init__(
        self,
        listening: Connection,
        noting: Connection,
        claimed_by: str,
        topics: Iterable[str],
        *,
        seen_seconds: float,
    ) -> None:
        self._listening = listening
        self._noting = noting
        self._claimed_by = claimed_by
        self._topics = sorted(topics)
        self._seen_seconds = seen_seconds
        self._asleep_until = 0.0
        self.hint = asyncio.Event()
        self.listening = False

    def said_asleep(self, seconds: float) -> bool:
        """Whether enqueuers know already that this consumer sleeps for ``seconds`` from now."""
        return boot_seconds() + seconds <= self._asleep_until

    async def note(self, *, sleep_seconds: float | None = None) -> None:
        """Write that this consumer is there, and how long it sleeps from now (``None``: awake)."""
        self._asleep_until = boot_seconds() + sleep_seconds if sleep_seconds is not None else 0.0
        await self._noting.execute(
            "note_consumer",
            claimed_by=self._claimed_by,
            topics=self._topics,
            seen_seconds=self._seen_seconds,
            sleep_seconds=sleep_seconds,
        )

    async def seen(self) -> None:
        """Write that this consumer is there; one that sleeps has written so at its last poll."""
        if not self.said_asleep(0):
            await self.note()

    async def awake(self) -> None:
        """Write that there is work enough, if enqueuers believe that this consumer sleeps."""
        if self.said_asleep(0):
            await self.note()

    async def forget(self) -> None:
        """Remove the consumer's row at its end."""
        await self._noting.execute("forget_consumer", claimed_by=self._claimed_by)

    async def listen(self) -> None:
        """Listen until cancelled; a broken connection is opened again, polls go on meanwhile."""
        while True:
            try:
                await self._listen_once()
            except (DatabaseUnavailable, psycopg.Error, TimeoutError) as error:
                _log.debug("listening stopped: %s", type(error).__name__)
            self.listening = False
            await self._listening.close()
            await asyncio.sleep(_RECONNECT_SECONDS)

    async def _listen_once(self) -> None:
        raw = await self._listening.raw()
        await raw.execute("LISTEN outbox_ready")
        self.listening = True
        # What was enqueued while nobody listened is found by one look.
        self.hint.set()
        while True:
            async for notification in raw.notifies(timeout=_PROBE_SECONDS):
                if notification.payload in self._topics:
                    self.hint.set()
            async with asyncio.timeout(_PROBE_SECONDS):
                await raw.execute("SELECT 1")
