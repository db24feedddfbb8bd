"""The service's own clock, which tests may move: keys age by it, and nothing else does."""

from __future__ import annotations

import time


class Clock:
    """Real time plus an offset in seconds."""

    def __init__(self) -> None:
        self.offset_seconds = 0.0

    def now(self) -> float:
        """Seconds since the epoch on the service's clock."""
        return time.time() + self.offset_seconds
