"""Scenes for an operator: jobs and effects brought into a state by the library's own statements."""

from __future__ import annotations

import hashlib
import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from outbox import Outbox, statements
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC = "email.order_confirmation"
CONSUMER = "host:1:cafe"
PAYLOAD = {"to": "jane@example.com", "order": 102}


@dataclass(frozen=True, slots=True)
class Claim:
    """A job as a consumer holds it."""

    id: int
    claim_version: int
    effect_key: str


class Scene:
    """A database, and a consumer in it that moves one statement at a time."""

    def __init__(self, url: str, connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self.connection = connection

    def enqueue(self, effect_key: str, *, topic: str = TOPIC, **options: Any) -> int:
        """Commit a job."""
        payload = options.pop("payload", PAYLOAD)
        with self.connection.transaction():
            return Outbox().enqueue(
                self.connection, topic, payload, effect_key=effect_key, **options
            )

    def run(self, statement: str, **parameters: object) -> list[dict[str, Any]]:
        """Run one of the library's statements."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute(statements.psycopg(statement).encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def sql(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Run any statement; its rows where it has some."""
        cursor = self.connection.execute(query.encode(), parameters)
        return cursor.fetchall() if cursor.description else []

    def claim(
        self, topic: str = TOPIC, *, limit: int = 1, lease_seconds: float = 60
    ) -> list[Claim]:
        """Claim ready jobs, in the order of their ids."""
        rows = self.run(
            "claim_jobs",
            topics=[topic], priorities=[0], floors=[-(2**63)], limit=limit,
            claimed_by=CONSUMER, lease_seconds=lease_seconds,
        )  # fmt: skip
        claims = [Claim(row["id"], row["claim_version"], row["effect_key"]) for row in rows]
        return sorted(claims, key=lambda claim: claim.id)

    def begin(self, claim: Claim, request: bytes = b"request") -> bool:
        """Begin the effect of a claimed job; false where the claim no longer holds."""
        rows = self.run(
            "begin_effects",
            job_ids=[claim.id], claim_versions=[claim.claim_version],
            wire_keys=[f"live-{claim.effect_key}"], requests=[request],
            request_hashes=[hashlib.sha256(request).digest()],
            claimed_by=CONSUMER, provider="resend", account="acct",
        )  # fmt: skip
        return bool(rows and rows[0]["begun"])

    def reopen(self, claim: Claim, requests_seen: int, request: bytes = b"new") -> bytes | None:
        """Begin a further try, and return the request that it has to send."""
        rows = self.run(
            "reopen_effects",
            job_ids=[claim.id], claim_versions=[claim.claim_version],
            requests_seen=[requests_seen], requests=[request],
            request_hashes=[hashlib.sha256(request).digest()],
            wire_keys=[f"live-{claim.effect_key}"],
            claimed_by=CONSUMER, provider="resend", account="acct",
        )  # fmt: skip
        return rows[0]["request"] if rows else None

    def settle(
        self, claim: Claim, job_action: str, effect_state: str | None = None, *,
        nothing_open: bool = True, requests_seen: int = 1, reason: str | None = None,
        detail: str | None = None, message_id: str | None = None, delay_seconds: float = 60,
        connection: psycopg.Connection[Any] | None = None,
    ) -> None:  # fmt: skip
        """Settle an attempt."""
        (connection or self.connection).execute(
            statements.psycopg("settle_attempts").encode(),
            {
                "outcomes": json.dumps(
                    [
                        {
                            "job_id": claim.id,
                            "claim_version": claim.claim_version,
                            "effect_key": claim.effect_key,
                            "requests_seen": requests_seen,
                            "effect_state": effect_state,
                            "nothing_open": nothing_open,
                            "message_id": message_id,
                            "job_action": job_action,
                            "refund": False,
                            "delay_seconds": delay_seconds,
                            "reason": reason,
                            "detail": detail,
                        }
                    ]
                ),
                "claimed_by": CONSUMER,
            },
        )

    def note(self, *topics: str, seen_seconds: float = 60) -> None:
        """Say that the consumer is there and serves these topics."""
        self.run(
            "note_consumer",
            claimed_by=CONSUMER, topics=list(topics), seen_seconds=seen_seconds, sleep_seconds=None,
        )  # fmt: skip

    # -- whole ways -----------------------------------------------------------------------------

    def begun(self, effect_key: str, **options: Any) -> Claim:
        """A job whose first request is under way."""
        self.enqueue(effect_key, **options)
        (claim,) = self.claim(options.get("topic", TOPIC))
        assert self.begin(claim)
        return claim

    def delivered(self, effect_key: str, message_id: str = "msg-1", **options: Any) -> Claim:
        """A job that delivered its effect."""
        claim = self.begun(effect_key, **options)
        self.settle(claim, "done", "delivered", message_id=message_id)
        return claim

    def held(self, effect_key: str, **options: Any) -> Claim:
        """A job whose effect may have been sent, and waits for a person."""
        claim = self.begun(effect_key, **options)
        self.settle(
            claim, "hold", "held", nothing_open=False, reason="no_memory", detail="no_memory: reset"
        )
        return claim

    def rejected(self, effect_key: str, **options: Any) -> Claim:
        """A job that is dead since the provider refused its effect for good."""
        claim = self.begun(effect_key, **options)
        self.settle(claim, "dead", "rejected", reason="rejected", detail="http_422: no such field")
        return claim

    def dead(self, effect_key: str, reason: str = "unrenderable", **options: Any) -> Claim:
        """A job that is dead without a request."""
        self.enqueue(effect_key, **options)
        (claim,) = self.claim(options.get("topic", TOPIC))
        self.settle(claim, "dead", reason=reason)
        return claim

    def backing_off(self, effect_key: str, *, reached: bool, **options: Any) -> Claim:
        """A job that waits for its next try; its last may have been accepted, or surely not."""
        claim = self.begun(effect_key, **options)
        self.settle(claim, "retry", "open", nothing_open=not reached, reason="reset")
        return claim

    # -- looking --------------------------------------------------------------------------------

    def state(self, job_id: int) -> tuple[str, str | None]:
        """The state for people of a job, and its reason."""
        rows = self.sql("SELECT state, reason FROM outbox.job_status WHERE id = %s", job_id)
        assert len(rows) == 1, f"job {job_id} has {len(rows)} states"
        return rows[0][0], rows[0][1]

    def effect(self, effect_key: str) -> dict[str, Any]:
        """A ledger row."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            cursor.execute("SELECT * FROM outbox.effect WHERE effect_key = %s", (effect_key,))
            row = cursor.fetchone()
        assert row is not None, f"the ledger has no {effect_key}"
        return row

    # -- races ----------------------------------------------------------------------------------

    @contextmanager
    def lock(self, query: str, *parameters: object) -> Iterator[psycopg.Connection[Any]]:
        """Hold the locks of a statement on a connection of its own until the end of the block."""
        with psycopg.connect(self.url) as other:
            other.execute(query.encode(), parameters)
            yield other

    def wait_for_blocked(self, sessions: int) -> None:
        """Wait until so many sessions of this database wait for a lock."""
        query = (
            "SELECT count(*) = %s FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        eventually(lambda: self.sql(query, sessions)[0][0])
