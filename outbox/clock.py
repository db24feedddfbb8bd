"""The consumer's own clock: it runs on while the machine sleeps and never jumps."""

from __future__ import annotations

import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Return seconds since a fixed moment, suspended time included where the system counts it."""
    return time.clock_gettime(_CLOCK)
