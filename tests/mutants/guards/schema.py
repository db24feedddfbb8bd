"""Guards of the tables themselves: what no statement can write, whatever it does."""

# ruff: noqa: E501 -- a table of texts

from __future__ import annotations

from tests.mutants.mutant import Edit, of

_FILE = "migrations/0001_jobs_and_ledger.sql"

SCHEMA = of(_FILE, {
    "two jobs of an id": Edit(
        "CREATE TABLE outbox.job ( id bigint PRIMARY KEY", "CREATE TABLE outbox.job ( id bigint NOT NULL"
    ),
    "two ends of a job": Edit(
        "CREATE TABLE outbox.ended_job ( id bigint PRIMARY KEY", "CREATE TABLE outbox.ended_job ( id bigint NOT NULL"
    ),
    "two effects of a key": Edit('effect_key text COLLATE "C" PRIMARY KEY', 'effect_key text COLLATE "C" NOT NULL'),
    "two consumers of a name": Edit('claimed_by text COLLATE "C" PRIMARY KEY', 'claimed_by text COLLATE "C" NOT NULL'),
    "any topic": Edit("topic ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$' AND", ""),
    "a topic of any length": Edit("AND length(topic) <= 100", ""),
    "any effect key": Edit("effect_key ~ '^[A-Za-z0-9._-]+$' AND", ""),
    "an effect key of any length": Edit("AND length(effect_key) <= 200", ""),
    "any fingerprint": Edit("CHECK (octet_length(payload_fingerprint) = 32)", "CHECK (true)"),
    "any ordering key": Edit("CHECK (length(ordering_key) BETWEEN 1 AND 200)", "CHECK (true)"),
    "no attempt at all": Edit("CHECK (max_attempts >= 1)", "CHECK (max_attempts >= 0)"),
    "waits for anything": Edit("CHECK (waiting IN ('schedule', 'backoff', 'order', 'resolve'))", "CHECK (true)"),
    "waits with a position": Edit("CHECK ((position IS NULL) = (waiting IS NOT NULL))", "CHECK (true)"),
    "waits for no time": Edit(
        "CHECK ( waiting IS NULL OR waiting NOT IN ('schedule', 'backoff') OR available_at IS NOT NULL )", "CHECK (true)"
    ),
    "a lease of nobody": Edit("(lease_until IS NULL) = (claimed_by IS NULL) AND", ""),
    "a lease since no time": Edit("AND (lease_until IS NULL) = (claimed_at IS NULL)", ""),
    "two heads of a key": Edit("CREATE UNIQUE INDEX job_ordering_head", "CREATE INDEX job_ordering_head"),
    "a blocked job is a head": Edit("WHERE ordering_key IS NOT NULL AND waiting IS DISTINCT FROM 'order'", "WHERE ordering_key IS NOT NULL"),
    "a ready job is no head": Edit("AND waiting IS DISTINCT FROM 'order'", "AND waiting <> 'order'"),
    "any end": Edit("CHECK (ended_as IN ('duplicate', 'dead', 'cancelled'))", "CHECK (true)"),
    "any state": Edit("CHECK (state IN ('open', 'delivered', 'rejected', 'held', 'given_up'))", "CHECK (true)"),
    "settled at no time": Edit("(settled_at IS NOT NULL AND request IS NULL)", "(request IS NULL)"),
    "settled with its request": Edit("(settled_at IS NOT NULL AND request IS NULL)", "(settled_at IS NOT NULL)"),
    "held though never sent": Edit("CHECK (state <> 'held' OR open_since IS NOT NULL)", "CHECK (true)"),
})  # fmt: skip
