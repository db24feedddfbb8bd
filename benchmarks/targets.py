"""What the figures are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: A line as it was read back from JSON.
Read = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure or ratio that has to be at least, or at most, so much (its median).

    ``case`` is how the line's case begins: the last such line of a run counts.
    """

    what: str
    kind: str
    case: str
    name: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def bound(self) -> str:
        """For people."""
        return f">= {self.at_least:,g}" if self.at_least is not None else f"<= {self.at_most:,g}"

    def measured(self, lines: Sequence[Read]) -> float | None:
        """The median of what it speaks of; ``None`` where that was not measured."""
        fitting = [
            line
            for line in lines
            if line["kind"] == self.kind and line["case"].startswith(self.case)
        ]
        for line in reversed(fitting):
            found = line["ratios"].get(self.name) or line["figures"].get(self.name)
            if found:
                return float(found["median"])
        return None

    def met(self, value: float) -> bool:
        """Whether a value is enough."""
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


_PYTHON_PEERS = (
    "procrastinate", "pgqueuer, asyncpg", "pgqueuer, psycopg", "oban", "faststream-outbox",
)  # fmt: skip
_ORDER = "order, job / order"
_HELD = "last / first"
TARGETS = (
    Target(
        "`place_order` with the job / without, in time, 1 connection",
        "enqueue", "place_order, 1 ", _ORDER, at_most=1.15,
    ),
    Target("the same, 4 connections", "enqueue", "place_order, 4 ", _ORDER, at_most=1.15),
    Target(
        "commits/s at 8 connections, hints on / off",
        "enqueue", "8 connections, hints", "hints on / off", at_least=0.95,
    ),
    Target(
        "drain, 4 KB request, one process, jobs/s",
        "drain", "20000 jobs, 4 KB", "one consumer process", at_least=8_000,
    ),
    Target(
        "the same / the statements by hand",
        "drain", "20000 jobs, 4 KB", "one / by hand", at_least=0.7,
    ),
    Target(
        "drain, no request, one process, jobs/s",
        "drain", "20000 jobs, no request", "one consumer process", at_least=15_000,
    ),
    Target(
        "two consumer processes / one",
        "drain", "20000 jobs, 4 KB", "two / one", at_least=1.2,
    ),
    Target(
        "last of ten rounds / first, snapshot held",
        "flat", "ten rounds of 50000, snapshot", _HELD, at_least=0.9,
    ),
    Target(
        "the same, writer held open",
        "flat", "ten rounds of 50000, writer", _HELD, at_least=0.8,
    ),
    Target(
        "trickle beside a held snapshot, p99 last minute / first",
        "flat", "trickle of 200/s for 600 s", "p99 last / first", at_most=1.2,
    ),
    Target(
        "bulk of 100,000 that commits late / normal rate",
        "flat", "bulk of 100000", "bulk / normal", at_least=0.7,
    ),
    Target(
        "rate with 300,000 unserved jobs ready / without",
        "flat", "300000 ready jobs", "with / without", at_least=0.95,
    ),
    Target(
        "claim of 100 with 5,000,000 waiting / with 1,000",
        "backlog", "claim of 100 behind 4,000,000", "many / few", at_most=1.5,
    ),
    Target(
        "e-mails/s, 50 in flight / bare loop of the same transport",
        "email", "50 in flight", "consumer / bare transport", at_least=0.7,
    ),
    Target(
        "the same / one plain httpx client",
        "email", "50 in flight", "consumer / plain httpx client", at_least=4,
    ),
    Target("commit to arrival, idle, p50, ms", "latency", "commit of", "p50", at_most=4),
    Target("commit to arrival, idle, p99, ms", "latency", "commit of", "p99", at_most=20),
    Target(
        "memory of a consumer, 5,000,000 waiting, MB",
        "backlog", "urgent job behind 4,000,000", "memory of the consumer", at_most=120,
    ),
    Target(
        "memory of a consumer over 200,000 e-mails, last tenth / first",
        "memory", "200000 e-mails", _HELD, at_most=1.05,
    ),
    Target(
        "statements per e-mail, 50 in flight, over HTTP",
        "cost", "per e-mail", "statements", at_most=0.2,
    ),
    *(
        Target(
            f"drain of no-op jobs, outbox / {peer}",
            "peers", "drain of 20000", f"outbox / {peer}", at_least=1,
        )
        for peer in _PYTHON_PEERS
    ),
    *(
        Target(
            f"cost of a job in a one-row transaction, outbox / {peer}, {connections} connection(s)",
            "peers", "one-row transaction with the job / without, in time, "
            f"{connections} ", f"outbox / {peer}", at_most=1,
        )
        for peer in ("procrastinate", "oban")
        for connections in (1, 4)
    ),
)  # fmt: skip
