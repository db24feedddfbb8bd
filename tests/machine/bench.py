"""What all histories share: a database that is emptied, an event loop, and a clock to push on."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from unittest import mock

import psycopg
from psycopg.rows import namedtuple_row

from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.operator import Operator

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

Result = TypeVar("Result")

#: Histories; what they delete would be read through for ever.
_VACUUM_EVERY = 5
_EMPTY = """
DELETE FROM outbox.job;
DELETE FROM outbox.ended_job;
DELETE FROM outbox.effect;
SELECT setval('outbox.job_position', 1, false);
"""
_OLDER = """
UPDATE outbox.job SET
    available_at = available_at - %(passed)s, expires_at = expires_at - %(passed)s,
    enqueued_at = enqueued_at - %(passed)s, claimed_at = claimed_at - %(passed)s,
    lease_until = lease_until - %(passed)s;
UPDATE outbox.ended_job SET
    expires_at = expires_at - %(passed)s, enqueued_at = enqueued_at - %(passed)s,
    ended_at = ended_at - %(passed)s;
UPDATE outbox.effect SET
    open_since = open_since - %(passed)s, settled_at = settled_at - %(passed)s,
    first_attempt_at = first_attempt_at - %(passed)s,
    last_attempt_at = last_attempt_at - %(passed)s;
"""
_JOBS = """
SELECT id, effect_key, topic, payload_fingerprint AS fingerprint, ordering_key, waiting, attempts,
    claim_version, claimed_by, lease_until IS NOT NULL AS claimed,
    coalesce(lease_until > clock_timestamp(), false) AS holds
FROM outbox.job
"""
_ENDED = """
SELECT id, effect_key, payload_fingerprint AS fingerprint, attempts, claim_version, ended_as,
    reason, detail, payload IS NOT NULL AS has_payload
FROM outbox.ended_job
"""
_EFFECTS = """
SELECT effect_key, job_id, claim_version, attempted_by, payload_fingerprint AS fingerprint,
    provider, account, wire_key, state, request, request_hash, requests_sent,
    open_since IS NOT NULL AS may_have_been_sent, settled_at IS NOT NULL AS settled,
    provider_message_id, detail
FROM outbox.effect
"""


class Look(NamedTuple):
    """The three tables at one moment, without times."""

    jobs: dict[int, Any]
    ended: dict[int, Any]
    effects: dict[str, Any]


class Bench:
    """The surroundings of one history after the other."""

    def __init__(self, sql: psycopg.Connection, line: Connection, runner: asyncio.Runner) -> None:
        self.sql = sql
        self.line = line
        self.operator = Operator(sql)
        self._runner = runner
        #: Seconds that a history has let pass; what really passes is next to nothing.
        self.now = 0.0
        #: How often each rule, answer and end was reached, over all histories.
        self.reached: Counter[str] = Counter()
        self.histories = 0

    @classmethod
    @contextmanager
    def open(cls, url: str) -> Iterator[Bench]:
        """Yield a bench on a database with the outbox schema, with the consumer's clock in hand."""
        with ExitStack() as stack:
            sql = stack.enter_context(psycopg.connect(url, autocommit=True))
            runner = stack.enter_context(asyncio.Runner())
            line = Connection(url, "machine")
            stack.callback(lambda: runner.run(line.close()))
            bench = cls(sql, line, runner)
            for module in ("consumer", "ledger", "lease", "claim"):
                clock = mock.patch(f"outbox.{module}.boot_seconds", bench._boot_seconds)
                stack.enter_context(clock)
            logging.getLogger("outbox").setLevel(logging.CRITICAL)
            stack.callback(logging.getLogger("outbox").setLevel, logging.NOTSET)
            yield bench

    def _boot_seconds(self) -> float:
        return boot_seconds() + self.now

    def begin(self) -> None:
        """Empty the tables for another history."""
        self.sql.execute(_EMPTY)
        if self.histories % _VACUUM_EVERY == 0:
            self.sql.execute("VACUUM outbox.job, outbox.ended_job, outbox.effect")
        self.now = 0.0
        self.histories += 1

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine of the library to its end."""
        return self._runner.run(work)

    def older(self, seconds: float) -> None:
        """Let time pass, for the database and for every process alike."""
        with psycopg.ClientCursor(self.sql) as cursor:
            cursor.execute(_OLDER, {"passed": timedelta(seconds=seconds)})
        self.now += seconds

    def look(self) -> Look:
        """Read what the tables say."""
        with self.sql.pipeline():
            tables: list[Any] = [
                self.sql.cursor(row_factory=namedtuple_row).execute(query)
                for query in (_JOBS, _ENDED, _EFFECTS)
            ]
            jobs, ended, effects = tables
            return Look(
                {row.id: row for row in jobs},
                {row.id: row for row in ended},
                {row.effect_key: row for row in effects},
            )
