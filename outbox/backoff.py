"""How long to wait before the next try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff: ``base_seconds`` doubling up to ``max_seconds``, with jitter.

    The jitter takes up to a fifth off, so that the cap is never exceeded and jobs that failed
    together don't come back together.
    """

    base_seconds: float = 10.0
    max_seconds: float = 600.0

    def delay_seconds(self, failures: int, dice: Callable[[], float] = random) -> float:
        """Return the wait after ``failures`` failures in a row (1 and up), in seconds."""
        # Doubling is bounded before it is computed: 2.0 ** 1024 overflows.
        doublings = min(max(failures - 1, 0), 60)
        return min(self.max_seconds, self.base_seconds * 2.0**doublings) * (1 - dice() / 5)
