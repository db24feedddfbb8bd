"""Replays traces of the model on the shipped code and a real PostgreSQL, step by step.

The processes are shipped consumers (``process``) whose own story of a job runs as it ships. Only its
edges are held: each statement waits until the trace says that it runs, and then until the trace says
whether its answer arrives; the provider answers what the trace says. Leases run out and time passes
in the database, by SQL, and on the consumers' clock. After each step the tables are read, and must
say what the model says.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any
from unittest import mock

import psycopg

from outbox.cancel import cancel
from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.enqueue import Outbox
from outbox.operator import Operator
from outbox.outcome import UNREADABLE
from outbox.resolve import Resolution, resolve
from outbox.retry import Permission, retry
from tests.model.process import CALL, LEASE_SECONDS, TOPIC, Process
from tests.model.seat import Disagreement
from tests.model.state import GONE, LAPSED, TICK_SECONDS, Action, Decision, Effect, Job, State, World

Trace = Sequence[tuple[Action, State]]

JOBS = """
SELECT id, claim_version, claimed_by, attempts, waiting, lease_until IS NOT NULL,
    coalesce(lease_until > clock_timestamp(), false), NULL, NULL
FROM outbox.job
UNION ALL
SELECT id, claim_version, NULL, attempts, NULL, false, false, ended_as, reason
FROM outbox.ended_job
"""
EFFECTS = """
SELECT effect_key, job_id, claim_version, requests_sent,
    extract(epoch FROM clock_timestamp() - open_since)::float8,
    coalesce(open_since = last_attempt_at, false), state, request IS NOT NULL, detail, request_hash
FROM outbox.effect
"""
OLDER = """
UPDATE outbox.effect
SET open_since = open_since - %(passed)s, last_attempt_at = last_attempt_at - %(passed)s,
    first_attempt_at = first_attempt_at - %(passed)s
"""
LAPSE = "UPDATE outbox.job SET lease_until = clock_timestamp() - interval '1 s' WHERE id = %s"
DUE = "UPDATE outbox.job SET available_at = clock_timestamp() WHERE id = %s AND waiting = 'backoff'"
UNCLAIM = """
UPDATE outbox.job
SET claim_version = claim_version - 1, attempts = attempts - 1,
    claimed_by = NULL, claimed_at = NULL, lease_until = NULL
WHERE id = %s
"""


class Bench:
    """A database, and what is needed to replay traces on it one after the other."""

    def __init__(self, url: str, real: Connection, connections: list[psycopg.Connection]) -> None:
        self.real = real
        self.sql, self.locks, people = connections
        self.operator = Operator(people)
        self.passed_seconds = 0.0

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Bench]:
        """Connect; the clock of the shipped consumers runs ahead by the ticks that have passed."""
        with ExitStack() as stack:
            connections = [
                stack.enter_context(psycopg.connect(url, autocommit=True)) for _ in range(3)
            ]
            async with Connection(url, "model") as real:
                bench = cls(url, real, connections)
                for module in ("consumer", "ledger", "lease", "claim"):
                    stack.enter_context(
                        mock.patch(f"outbox.{module}.boot_seconds", bench._boot_seconds)
                    )
                stack.enter_context(mock.patch("outbox.consumer._RETRY_SECONDS", 0.0))
                logging.getLogger("outbox").setLevel(logging.CRITICAL)
                stack.callback(logging.getLogger("outbox").setLevel, logging.NOTSET)
                yield bench

    def _boot_seconds(self) -> float:
        return boot_seconds() + self.passed_seconds

    async def replay(self, w: World, trace: Trace) -> None:
        """Walk along a trace.

        Raises:
            Disagreement: the shipped code went another way; the text holds the trace up to there.
        """
        self.sql.execute("DELETE FROM outbox.job")
        self.sql.execute("DELETE FROM outbox.ended_job")
        self.sql.execute("DELETE FROM outbox.effect")
        self.passed_seconds = 0.0
        history = Replay(self, w)
        try:
            for number, ((_, before), (action, after)) in enumerate(zip(trace, trace[1:], strict=False)):
                await self._step(history, action, before, after, trace[: number + 2])
        finally:
            await history.close()

    async def _step(
        self, history: Replay, action: Action, before: State, after: State, so_far: Trace
    ) -> None:
        try:
            await history.perform(action, before, after)
            history.compare(after)
        except Exception as error:
            steps = "\n".join(f"  {' '.join(map(str, step))}" for step, _ in so_far[1:])
            raise Disagreement(f"{error!r} after\n{steps}") from error


class Replay:
    """One trace in progress."""

    def __init__(self, bench: Bench, w: World) -> None:
        self._bench = bench
        self._w = w
        self._processes = [Process(w, bench.real) for _ in range(w.consumers)]
        self._ids = [
            Outbox().enqueue(self._bench.locks_in_turn(), TOPIC, {}, effect_key=f"key-{key}")
            for key in w.keys
        ]
        self._hashes: dict[tuple[int, int], bytes] = {}
