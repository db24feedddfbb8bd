"""Jobs to work on: written in bulk as enqueue would have written them."""

from __future__ import annotations

import psycopg

TOPIC = "bench.effect"

#: One INSERT, so that filling the queue takes little of the time of a run. The payload is that of
#: a small order confirmation.
_FILL = """
INSERT INTO outbox.job (id, topic, position, effect_key, payload, payload_fingerprint, priority)
SELECT id, %(topic)s, id, %(prefix)s || n, payload::json, sha256(payload::bytea), %(priority)s
FROM (
    SELECT nextval('outbox.job_position') AS id, n,
        '{"order_id": ' || n || ', "customer": {"name": "Ada", "email": "ada@example.com"},'
        || ' "lines": [{"product": "Teapot, cast iron", "quantity": 1, "total": "49.90"}],'
        || ' "total": "49.90", "currency": "EUR"}' AS payload
    FROM generate_series(1, %(count)s) AS n
) AS made
"""
_SCHEDULED = """
INSERT INTO outbox.job (
    id, topic, effect_key, payload, payload_fingerprint, available_at, waiting
)
SELECT nextval('outbox.job_position'), %(topic)s, 'later-' || n, '{}', sha256('{}'),
    clock_timestamp() + interval '24 hours' + n * interval '1 ms', 'schedule'
FROM generate_series(1, %(count)s) AS n
"""
_DELIVERED = """
INSERT INTO outbox.effect (
    effect_key, job_id, claim_version, attempted_by, topic, payload_fingerprint, provider, account,
    wire_key, state, request_hash, requests_sent, first_attempt_at, last_attempt_at, settled_at,
    provider_message_id
)
SELECT 'old-' || n, -n, 1, 'someone', %(topic)s, sha256('{}'), 'none', 'local', 'old-' || n,
    'delivered', sha256('{}'), 1, now(), now(), now(), 'id-' || n
FROM generate_series(1, %(count)s) AS n
"""


def fill(
    connection: psycopg.Connection,
    count: int,
    *,
    prefix: str = "k-",
    topic: str = TOPIC,
    priority: int = 0,
) -> None:
    """Make ``count`` jobs ready, with effect keys ``prefix`` and a number."""
    values = {"count": count, "prefix": prefix, "topic": topic, "priority": priority}
    connection.execute(_FILL, values)


def schedule(connection: psycopg.Connection, count: int) -> None:
    """Make ``count`` jobs that wait for tomorrow."""
    connection.execute(_SCHEDULED, {"count": count, "topic": TOPIC})


def remember(connection: psycopg.Connection, count: int) -> None:
    """Write ``count`` delivered effects into the ledger."""
    connection.execute(_DELIVERED, {"count": count, "topic": TOPIC})


def wake(connection: psycopg.Connection) -> None:
    """Send the hint that enqueue would have sent."""
    connection.execute("SELECT pg_notify('outbox_ready', %s)", [TOPIC])
