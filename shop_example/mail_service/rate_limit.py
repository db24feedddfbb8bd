"""So many requests a second, and the headers that say how many are left."""

from __future__ import annotations

import math
from collections.abc import Callable

from shop_example.mail_service.answer import Header


class RateLimit:
    """Counts requests in fixed windows of one second, as Resend's headers describe it."""

    def __init__(self, per_second: int, monotonic: Callable[[], float]) -> None:
        self.per_second = per_second
        self._monotonic = monotonic
        self._window_start = -math.inf
        self._used = 0

    def take(self) -> bool:
        """Uses up one request of the window; False when there was none left."""
        now = self._monotonic()
        if now - self._window_start >= 1:
            self._window_start, self._used = now, 0
        self._used += 1
        return self._used <= self.per_second

    def headers(self, *, refused: bool) -> tuple[Header, ...]:
        """``ratelimit-*`` for every answer, and ``retry-after`` for a refusal."""
        left = max(0.0, 1 - (self._monotonic() - self._window_start))
        seconds = b"%d" % max(1, math.ceil(left))
        headers = (
            (b"ratelimit-limit", b"%d" % self.per_second),
            (b"ratelimit-remaining", b"%d" % max(0, self.per_second - self._used)),
            (b"ratelimit-reset", seconds),
        )
        return (*headers, (b"retry-after", seconds)) if refused else headers
