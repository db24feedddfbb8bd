"""The Retry-After header (RFC 9110, 10.2.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Return how long an answer asks to wait, in seconds; ``None`` where it says nothing readable.

    A date counts from the answer's own Date header: two readings of one clock. Without that header
    it is ignored, since our clock may differ from the provider's by more than the wait.
    """
    value = headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(value):
        return float(value)
    until, now = _date(value), _date(headers.get("date", ""))
    if until is None or now is None:
        return None
    return max(0.0, (until - now).total_seconds())


def _date(value: str) -> datetime | None:
    try:
        # RFC 9110 dates are in GMT; one without a zone is read as such.
        return parsedate_to_datetime(value[:100]).replace(tzinfo=None)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
