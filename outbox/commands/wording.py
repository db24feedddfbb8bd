"""What people read: addresses masked, moments and spans of time in few characters."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_ADDRESS = re.compile(r"""[^\s@<>()\[\]"',;:=]+(?:@|%40)[^\s@<>()\[\]"',;:]+""")


def masked(text: str) -> str:
    """Return a text with every e-mail address in it masked."""
    return _ADDRESS.sub("***@***", text)


def moment(value: datetime | None) -> str:
    """Return a moment in UTC to the second, for people."""
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def duration(seconds: float | None) -> str:
    """Return a span of time in the largest two units that fit it."""
    if seconds is None:
        return ""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])
