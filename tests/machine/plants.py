"""Bugs to plant into the shipped statements and decisions: does the machine find them?"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple
from unittest import mock

from outbox import outcome, statements, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator


class Change(NamedTuple):
    """What is taken out of a statement, and what takes its place."""

    statement: str
    pattern: str
    instead: str = ""


_FENCE = r"AND job\.claim_version = {0}\.claim_version\s+AND job\.claimed_by = :claimed_by"
_LEASE = r"AND job\.lease_until > clock_timestamp\(\)"

#: Each is one guard of one statement.
STATEMENTS = {
    "settle without a fence": [Change("settle_attempts", _FENCE.format("outcome"))],
    "settle without claim_version": [
        Change("settle_attempts", r"AND job\.claim_version = outcome\.claim_version")
    ],
    "settle over what has moved on": [
        Change("settle_attempts", r"AND effect\.requests_sent = wish\.requests_seen")
    ],
    "settle over what is settled": [
        Change("settle_attempts", r"AND effect\.state = 'open'"),
        Change("settle_attempts", r"AND effect\.requests_sent = wish\.requests_seen"),
    ],
    "a job vanishes that is dead": [
        Change("settle_attempts", r"WHERE job_action <> 'done'", "WHERE job_action = 'duplicate'")
    ],
    "begin without a fence": [
        Change("begin_effects", _FENCE.format("wanted")), Change("begin_effects", _LEASE)
    ],
    "begin without a lease": [Change("begin_effects", _LEASE)],
    "begin over what is there": [
        Change(
            "begin_effects",
            r"ON CONFLICT \(effect_key\) DO NOTHING",
            "ON CONFLICT (effect_key) DO UPDATE SET request = excluded.request,"
            " claim_version = excluded.claim_version, job_id = excluded.job_id",
        )
    ],
    "reopen without a fence": [
        Change("reopen_effects", _FENCE.format("wanted")), Change("reopen_effects", _LEASE)
    ],
    "reopen with new bytes": [
        Change(
            "reopen_effects",
            r"CASE WHEN target\.freeze_anew THEN target\.request ELSE effect\.request END",
            "coalesce(target.request, effect.request)",
        )
    ],
    "reopen begins the age anew": [
        Change("reopen_effects", r"coalesce\(effect\.open_since, moment\.now\)", "moment.now")
    ],
    "a heartbeat without a lease": [Change("extend_leases", _LEASE)],
    "claim what is claimed": [Change("claim_jobs", r"AND job\.lease_until IS NULL")],
    "claim a crash before it is one": [
        Change("claim_crashed_job", r"AND job\.lease_until <= clock_timestamp\(\)",
               "AND job.lease_until IS NOT NULL")
    ],
    "crashes are not counted": [
        Change("claim_crashed_job", r"attempts = job\.attempts \+ 1", "attempts = job.attempts")
    ],
    "blind to the others": [
        Change("read_effects", r"AND other\.lease_until > clock_timestamp\(\)", "AND false")
    ],
    "cancel what is at work": [
        Change("cancel_jobs", r"WHEN job\.lease_until > clock_timestamp\(\) THEN 'running'",
               "WHEN false THEN 'running'")
    ],
    "cancel what may have been sent": [
        Change("cancel_jobs", r"WHEN effect\.open_since IS NOT NULL THEN 'may_have_been_sent'")
    ],
    "retry what may have been sent": [
        Change("retry_jobs", r"AND NOT CAST\(:send_again AS boolean\)", "AND false")
    ],
    "retry what is held": [Change("retry_jobs", r"WHEN effect\.state = 'held' THEN 'held'")],
    "giving up forgets": [
        Change("resolve_effects", r"THEN effect\.open_since END",
               "THEN CAST(NULL AS timestamptz) END")
    ],
    "prune too early": [
        Change("prune_ended_jobs", r"AND ended_at < clock_timestamp\(\) -[^\n]*")
    ],
    "prune what is open": [Change("prune_ended_jobs", r"AND effect\.open_since IS NULL")],
    "ordered jobs all at once": [
        Change("insert_job", r"CAST\(:ordering_key AS text\) IS NULL AND NOT later", "NOT later"),
        Change("insert_job", r"WHEN CAST\(:ordering_key AS text\) IS NOT NULL THEN 'order'"),
        Change("insert_job", r"CAST\(:ordering_key AS text\),", "NULL,"),
    ],
    "ordered jobs in any order": [
        Change("release_ordered_jobs", r"ORDER BY job\.id LIMIT 1", "ORDER BY job.id DESC LIMIT 1")
    ],
}  # fmt: skip


@contextmanager
def changed(*changes: Change) -> Iterator[None]:
    """Run with other statements.

    Raises:
        AssertionError: there is nothing to change any more; the plant has to follow the statement.
    """
    original = statements.text

    def text(name: str) -> str:
        found = original(name)
        for change in changes:
            if change.statement == name:
                found, count = re.subn(change.pattern, change.instead, found)
                assert count, f"{name}: nothing like {change.pattern}"
        return found

    with mock.patch.object(statements, "text", text):
        statements.psycopg.cache_clear()
        for change in changes:
            statements.psycopg(change.statement)
        try:
            yield
        finally:
            statements.psycopg.cache_clear()


#: Decisions in Python that are taken wrongly.
DECISIONS = ("an unknown try is taken for unsent", "no cap", "a failure proves nothing was sent")


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Run with a bug."""
    with ExitStack() as stack:
        if name in STATEMENTS:
            stack.enter_context(changed(*STATEMENTS[name]))
        elif name == "an unknown try is taken for unsent":
            call = verdict.Call(sole_open=True, seconds_left=float("inf"))
            stack.enter_context(mock.patch.object(verdict, "_repeat", return_value=call))
        elif name == "no cap":
            cap = mock.patch.object(outcome.Policy, "attempts_allowed", return_value=10**6)
            stack.enter_context(cap)
        else:
            later = outcome._Decision.later
            stack.enter_context(mock.patch.object(outcome._Decision, "open", later))
        yield
