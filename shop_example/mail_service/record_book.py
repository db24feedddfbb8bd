"""The record in use: every event goes to the journal and into the counts, the same way round.

What a running service knows is what its events say; after a restart the same events, read back,
make it know the same.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from shop_example.mail_service.clock import Clock
from shop_example.mail_service.events import (
    FORMAT,
    ClockMoved,
    Closed,
    Cut,
    Decided,
    Event,
    Malformed,
    Opened,
    Received,
    event_of,
    line_of,
)
from shop_example.mail_service.journal import Journal
from shop_example.mail_service.keys import KeyMemory, Remembered
from shop_example.mail_service.record import RecordError, read_lines
from shop_example.mail_service.settings import Settings


class RecordBook:
    """Numbers, keys, clock and counts of one record; raises RecordError if it can't be used."""

    def __init__(self, settings: Settings) -> None:
        self.journal = Journal(settings.record)
        self.clock = Clock()
        self.keys = KeyMemory(settings.key_window_seconds, settings.keeps_keys)
        self.counts: Counter[str] = Counter()
        self.in_progress = 0
        self.faults: Counter[str] = Counter()
        self._seq = 0
        self._connection = 0
        self._turns: Counter[str] = Counter()
        self._offsets: dict[str, int] = {}
        self._settings = settings
        try:
            for offset, event in read_lines(settings.record):
                self._take_in(event, offset)
        except RecordError:
            self.journal.release()
            raise

    def open(self) -> None:
        """Notes that this process begins to write."""
        settings = self._settings
        self.note(
            Opened(
                at=time.time(),
                format=FORMAT,
                pid=os.getpid(),
                keeps_keys=settings.keeps_keys,
                key_window_seconds=settings.key_window_seconds,
            )
        )

    def note(self, event: Event, mail: bytes | None = None) -> None:
        """Queues an event for the disk and counts it; ``synced`` tells when it is there."""
        offset = self.journal.append(line_of(event, mail))
        self._take_in(event, offset)

    async def synced(self) -> None:
        """Returns once all noted events are on disk; raises RecordError when they can't be."""
        await self.journal.synced()

    async def close(self) -> None:
        """Writes what is queued and lets go of the record."""
        await self.journal.close()

    def next_seq(self) -> int:
        """The number of the next request."""
        return self._seq + 1

    def next_connection(self) -> int:
        """A number for a new connection, never used in this record before."""
        self._connection += 1
        return self._connection

    def turn(self, key: str | None) -> int:
        """How many requests have come under this key."""
        return 0 if key is None else self._turns[key]

    def email(self, email_id: str) -> Decided | None:
        """The event that accepted an e-mail, with the mail; None for an unknown id."""
        offset = self._offsets.get(email_id)
        event = None if offset is None else event_of(self.journal.line_at(offset))
        return event if isinstance(event, Decided) else None

    def _take_in(self, event: Event, offset: int) -> None:
        match event:
            case Received():
                self._take_in_arrival(event)
            case Decided():
                self._take_in_decision(event, offset)
            case Opened():
                self.counts["starts"] += 1
                self.in_progress = 0
            case Cut() | Closed() | Malformed():
                self._connection = max(self._connection, event.connection)
                self.counts[event.event] += 1
            case ClockMoved():
                self.clock.offset_seconds = event.offset_seconds
            case _:
                pass

    def _take_in_arrival(self, event: Received) -> None:
        self._seq = event.seq
        self._connection = max(self._connection, event.connection)
        self.counts["requests"] += 1
        self.in_progress += 1
        if event.key is not None:
            self._turns[event.key] += 1

    def _take_in_decision(self, event: Decided, offset: int) -> None:
        self.in_progress -= 1
        if event.fault is not None:
            self.faults[event.fault] += 1
        if event.email_id is None or event.fingerprint is None or not event.accepted:
            self.counts["replayed" if event.replayed else "refused"] += 1
            return
        self.counts["accepted"] += 1
        self._offsets[event.email_id] = offset
        email = Remembered(event.email_id, event.fingerprint, event.clock)
        self.keys.remember(event.key, email)
