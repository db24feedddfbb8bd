"""What the tables refuse, whatever a statement of ours or of somebody else writes."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from psycopg.errors import CheckViolation, UniqueViolation

if TYPE_CHECKING:
    from collections.abc import Iterator


HASH = hashlib.sha256(b"").digest()
NOW = "2030-01-01 00:00:00+00"
VALID: dict[str, dict[str, Any]] = {
    "job": {
        "id": 1, "topic": "t", "position": 1, "effect_key": "k", "payload": "{}",
        "payload_fingerprint": HASH,
    },
    "ended_job": {
        "id": 1, "topic": "t", "priority": 0, "effect_key": "k", "payload_fingerprint": HASH,
        "enqueued_at": NOW, "attempts": 0, "claim_version": 0, "ended_as": "dead", "reason": "r",
    },
    "effect": {
        "effect_key": "k", "job_id": 1, "claim_version": 1, "attempted_by": "me", "topic": "t",
        "payload_fingerprint": HASH, "provider": "p", "account": "a", "wire_key": "k",
        "requests_sent": 1, "first_attempt_at": NOW, "last_attempt_at": NOW,
    },
    "consumer": {"claimed_by": "me", "topics": ["t"], "seen_until": NOW},
}  # fmt: skip
CLAIM = {"claimed_by": "me", "claimed_at": NOW, "lease_until": NOW}
WAITS = {"position": None, "available_at": NOW}


def name_of(value: object) -> str:
    """For the ids of tests."""
    return "-".join(value) if isinstance(value, dict) else str(value)


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection]:
    """A transaction that is undone."""
    with psycopg.connect(url) as connection, connection.transaction(force_rollback=True):
        yield connection


def write(connection: psycopg.Connection, table: str, **changed: object) -> None:
    """Write a valid row of a table, but for what is changed."""
    row = VALID[table] | changed
    query = sql.SQL("INSERT INTO outbox.{} ({}) VALUES ({})").format(
        sql.Identifier(table),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() * len(row)),
    )
    with connection.transaction():
        connection.execute(query, list(row.values()))


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("job", {"topic": ""}),
        ("job", {"topic": "-t"}),
        ("job", {"topic": "t" * 101}),
        ("job", {"effect_key": ""}),
        ("job", {"effect_key": "k k"}),
        ("job", {"effect_key": "k" * 201}),
        ("job", {"payload_fingerprint": b"short"}),
        ("job", {"ordering_key": ""}),
        ("job", {"ordering_key": "k" * 201}),
        ("job", {"max_attempts": 0}),
        ("job", WAITS | {"waiting": "for-godot"}),
        ("job", {"position": None}),
        ("job", {"waiting": "resolve"}),
        ("job", {"waiting": "schedule", "position": None}),
        ("job", {"waiting": "backoff", "position": None}),
        ("job", CLAIM | {"claimed_by": None}),
        ("job", CLAIM | {"claimed_at": None}),
        ("job", CLAIM | {"lease_until": None}),
        ("ended_job", {"ended_as": "done"}),
        ("effect", {"state": "sent", "settled_at": NOW}),
        ("effect", {"state": "delivered"}),
        ("effect", {"state": "rejected", "settled_at": NOW, "request": b"r"}),
        ("effect", {"state": "held"}),
    ],
    ids=name_of,
)
def test_a_row_that_makes_no_sense_is_refused(
    connection: psycopg.Connection, table: str, changed: dict[str, Any]
) -> None:
    """Each by a constraint of its own."""
    with pytest.raises(CheckViolation):
        write(connection, table, **changed)


@pytest.mark.parametrize(
    ("table", "changed"),
    [
        ("job", {"topic": "t" * 100, "effect_key": "k" * 200, "max_attempts": 1}),
        ("job", {"ordering_key": "k" * 200}),
        ("job", CLAIM),
        *(("job", WAITS | {"waiting": word}) for word in ("schedule", "backoff")),
        *(("job", {"position": None, "waiting": word}) for word in ("order", "resolve")),
        *(("ended_job", {"ended_as": word}) for word in ("duplicate", "dead", "cancelled")),
        ("effect", {"state": "open", "request": b"r"}),
        ("effect", {"state": "held", "open_since": NOW, "request": b"r"}),
        *(("effect", {"state": word, "settled_at": NOW}) for word in ("delivered", "rejected")),
        ("effect", {"state": "given_up", "settled_at": NOW, "open_since": NOW}),
    ],
    ids=name_of,
)
def test_a_row_at_the_edge_of_sense_is_taken(
    connection: psycopg.Connection, table: str, changed: dict[str, Any]
) -> None:
    """What the product does write, or may."""
    write(connection, table, **changed)


@pytest.mark.parametrize("table", VALID)
def test_no_row_is_there_twice(connection: psycopg.Connection, table: str) -> None:
    """One job of an id, one end of a job, one effect of a key, one consumer of a name."""
    write(connection, table)
    with pytest.raises(UniqueViolation):
        write(connection, table)


@pytest.mark.parametrize(
    "state", [{}, CLAIM, WAITS | {"waiting": "backoff"}, {"position": None, "waiting": "resolve"}]
)
def test_a_line_has_one_head(connection: psycopg.Connection, state: dict[str, Any]) -> None:
    """Whatever the head does; the others are blocked, and lines don't mind each other."""
    write(connection, "job", ordering_key="line", **state)
    for id_ in (2, 3):
        blocked = {"position": None, "waiting": "order"}
        write(connection, "job", id=id_, ordering_key="line", **blocked)
    write(connection, "job", id=4, ordering_key="other line")
    write(connection, "job", id=5)
    with pytest.raises(UniqueViolation, match="job_ordering_head"):
        write(connection, "job", id=6, ordering_key="line")
