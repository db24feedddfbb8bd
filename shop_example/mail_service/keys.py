"""The memory of idempotency keys: what a request under a known key may expect.

In memory; the record rebuilds it after a restart.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Remembered:
    """An e-mail that was accepted under a key, and the payload's fingerprint."""

    email_id: str
    fingerprint: str
    since: float


class Standing(enum.Enum):
    """How a key stands when there is no e-mail to replay."""

    FREE = enum.auto()
    IN_PROGRESS = enum.auto()
    OTHER_PAYLOAD = enum.auto()


class KeyMemory:
    """Keys of accepted e-mails for ``window_seconds``, and of those in progress.

    With ``keeps_keys`` off every key is free, always.
    """

    def __init__(self, window_seconds: float, keeps_keys: bool) -> None:
        self.window_seconds = window_seconds
        self.keeps_keys = keeps_keys
        self._remembered: dict[str, Remembered] = {}
        self._in_progress: set[str] = set()

    def look_up(self, key: str | None, fingerprint: str, now: float) -> Remembered | Standing:
        """The e-mail that a repeat gets again, or how the key stands."""
        if key is None or not self.keeps_keys:
            return Standing.FREE
        if key in self._in_progress:
            return Standing.IN_PROGRESS
        earlier = self._remembered.get(key)
        if earlier is None or now - earlier.since >= self.window_seconds:
            return Standing.FREE
        return earlier if earlier.fingerprint == fingerprint else Standing.OTHER_PAYLOAD

    def reserve(self, key: str | None) -> None:
        """Marks the key as in progress until it is remembered or released."""
        if key is not None:
            self._in_progress.add(key)

    def release(self, key: str | None) -> None:
        """Ends what ``reserve`` began."""
        if key is not None:
            self._in_progress.discard(key)

    def remember(self, key: str | None, email: Remembered) -> None:
        """Keeps the key of an accepted e-mail, in the place of an expired one."""
        if key is not None and self.keeps_keys:
            self._remembered[key] = email

    def count(self, now: float) -> int:
        """How many keys are inside their window."""
        window = self.window_seconds
        return sum(now - email.since < window for email in self._remembered.values())
