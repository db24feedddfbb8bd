"""A job that is to be: its arguments, checked before any SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from outbox import payload as payloads
from outbox.errors import InvalidJob

_EFFECT_KEY = re.compile(r"[A-Za-z0-9._-]{1,200}")
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """What one job asks for; :meth:`Outbox.enqueue` says what the fields mean."""

    payload: Mapping[str, Any]
    effect_key: str
    available_at: datetime | None = None
    expires_at: datetime | None = None
    priority: int = 0
    ordering_key: str | None = None
    max_attempts: int | None = None

    def row(self, topic: str) -> dict[str, object]:
        """Return the parameters of its INSERT.

        Raises:
            InvalidJob: an argument is wrong; ``field`` names it.
        """
        text, fingerprint = payloads.encode(self.payload)
        row: dict[str, object] = {
            "topic": _match(_TOPIC, topic, "topic"),
            "effect_key": _match(_EFFECT_KEY, self.effect_key, "effect_key"),
            "payload": text,
            "payload_fingerprint": fingerprint,
            "available_at": _moment(self.available_at, "available_at"),
            "expires_at": _moment(self.expires_at, "expires_at"),
            "priority": _number(self.priority, "priority", -32_768, 32_767),
            "ordering_key": _ordering_key(self.ordering_key),
            "max_attempts": _number(self.max_attempts, "max_attempts", 1, 1_000_000),
        }
        if (
            self.available_at is not None
            and self.expires_at is not None
            and self.expires_at <= self.available_at
        ):
            raise InvalidJob("expires_at", "is not after available_at: the job could never run")
        return row


def _match(pattern: re.Pattern[str], value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidJob(field, f"must be text, not {type(value).__name__}")
    if not pattern.fullmatch(value):
        short = len(value) <= 60 and value.isascii() and "@" not in value
        shown = repr(value) if short else f"text of {len(value)} characters"
        raise InvalidJob(field, f"{shown} does not match {pattern.pattern}")
    return value


def _moment(value: object, field: str) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, datetime):
        raise InvalidJob(field, f"must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidJob(
            field, "has no time zone; pass e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
    try:
        # One zone for all drivers: they differ in what they make of odd ones.
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidJob(field, "lies outside the years 1 to 9999 in UTC") from None


def _number(value: object, field: str, lowest: int, highest: int) -> int | None:
    if value is None and field == "max_attempts":
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidJob(field, f"must be a whole number, not {type(value).__name__}")
    if not lowest <= value <= highest:
        raise InvalidJob(field, f"{value} is not between {lowest} and {highest}")
    return value


def _ordering_key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InvalidJob("ordering_key", f"must be text, not {type(value).__name__}")
    if not 1 <= len(value) <= 200:
        raise InvalidJob("ordering_key", f"{len(value)} characters; between 1 and 200 are allowed")
    payloads.check_text(value, "ordering_key")
    return value
