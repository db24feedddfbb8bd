"""How many jobs of this consumer are where on their way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class UnderWay:
    """Counts of the jobs that are claimed and not settled yet.

    ``jobs``: all of them; of these, ``rendering`` is about to begin, ``calling`` waits for an
    answer, and the outcome of ``settling`` is being written.
    """

    jobs: int = 0
    rendering: int = 0
    calling: int = 0
    settling: int = 0

    @property
    def unanswered(self) -> int:
        """Those that take a slot: their call is to come or to end."""
        return self.jobs - self.settling
