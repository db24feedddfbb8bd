"""Guards of claims: whose job, from where in the queue, with which lock, charged with what."""

# ruff: noqa: E501 -- a table of texts

from __future__ import annotations

from tests.mutants.mutant import Edit, of_sql, same

MATERIALIZED = """
A CTE whose query locks rows is never inlined, MATERIALIZED or not (contain_dml in the planner's
subselect.c counts row marks); the word says so to the reader."""
ONE_INSTANT = """
The two differ only when the clock, read during the statement, shows the very microsecond that was
stored; either answer is right then."""
BY_INDEX = """
The join says the same. This condition offers the index, whatever the planner believes of the size of
the table; test_cost.py watches the way."""
ONE_CHANGE = """
The manual leaves open which of two changes of one row in one statement takes place. PostgreSQL 14 to
18 do the last part's first (the one that keeps the job), and a row that the same statement has
changed already is not deleted. The condition leaves nothing to that."""

CLAIMS = [
    *of_sql("claim_jobs", {
        "any topic": Edit("job.topic = lane.topic", "true"),
        "any priority": Edit("job.priority = lane.priority", "true"),
        "no floor": Edit("AND job.position >= lane.floor", ""),
        "above the floor only": Edit("position >= lane.floor", "position > lane.floor"),
        "below the floor": Edit("position >= lane.floor", "position <= lane.floor"),
        "claimed ones too": Edit("AND job.lease_until IS NULL", ""),
        "crashed ones too": Edit(
            "job.lease_until IS NULL",
            "(job.lease_until IS NULL OR job.lease_until <= clock_timestamp())",
        ),
        "any order": Edit("ORDER BY job.position", ""),
        "newest first": Edit("ORDER BY job.position", "ORDER BY job.position DESC"),
        "no limit of a lane": same("""
            The limit over all lanes stops pulling rows, and a row is locked when it is pulled: the
            same rows are locked and returned. It lets the planner stop early in each lane.""",
            "LIMIT :limit FOR NO KEY", "FOR NO KEY"),
        "no limit over all lanes": Edit("LIMIT :limit )", ")"),
        "no lock": Edit("FOR NO KEY UPDATE SKIP LOCKED", ""),
        "waits for locks": Edit("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        "shared lock": Edit("FOR NO KEY UPDATE", "FOR SHARE"),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "not materialized": same(MATERIALIZED, "AS MATERIALIZED", "AS"),
        "version stays": Edit("job.claim_version + 1", "job.claim_version"),
        "charges nothing": Edit("job.attempts + 1", "job.attempts"),
        "claimed at its transaction's start": Edit(
            "claimed_at = clock_timestamp()", "claimed_at = now()"
        ),
        "lease from its transaction's start": Edit(
            "lease_until = clock_timestamp()", "lease_until = now()"
        ),
        "every row": Edit("WHERE job.id = ANY (ARRAY(SELECT picked.id FROM picked))", ""),
        "expired unless later": Edit("expires_at <= clock_timestamp()", "expires_at > clock_timestamp()"),
        "expired by its transaction's start": Edit(
            "expires_at <= clock_timestamp()", "expires_at <= now()"
        ),
        "expired a moment later": same(
            ONE_INSTANT, "expires_at <= clock_timestamp()", "expires_at < clock_timestamp()"
        ),
        "without an end neither expired nor not": Edit(
            "coalesce(job.expires_at <= clock_timestamp(), false)",
            "job.expires_at <= clock_timestamp()",
        ),
    }),
    *of_sql("claim_crashed_job", {
        "any topic": Edit("job.topic = lane.topic AND", ""),
        "any priority": Edit("AND job.priority = lane.priority", ""),
        "without a position too": Edit("AND job.position IS NOT NULL", ""),
        "any order": Edit("ORDER BY job.position", ""),
        "of the whole lane": Edit("ORDER BY job.position LIMIT :limit", "ORDER BY job.position"),
        "valid claims too": Edit(
            "job.id = front.id AND job.lease_until <= clock_timestamp()",
            "job.id = front.id AND job.lease_until IS NOT NULL",
            "WHERE front.lease_until <= clock_timestamp()", "WHERE front.lease_until IS NOT NULL",
        ),
        "fresh ones too": Edit(
            "job.id = front.id AND job.lease_until <= clock_timestamp()", "job.id = front.id",
            "WHERE front.lease_until <= clock_timestamp()", "",
        ),
        "what has changed since it looked": Edit(
            "job.id = front.id AND job.lease_until <= clock_timestamp()", "job.id = front.id"
        ),
        "each of the front is looked at again": same("""
            The row itself is asked the same under its lock; the look at the front only spares the
            rows that can't have crashed a probe.""",
            "WHERE front.lease_until <= clock_timestamp()", ""),
        "by its transaction's start": Edit(
            "job.id = front.id AND job.lease_until <= clock_timestamp()",
            "job.id = front.id AND job.lease_until <= now()",
            "WHERE front.lease_until <= clock_timestamp()", "WHERE front.lease_until <= now()",
        ),
        "a moment later": same(
            ONE_INSTANT, "front.id AND job.lease_until <= clock_timestamp()",
            "front.id AND job.lease_until < clock_timestamp()",
        ),
        "one of each lane, or more": Edit("LIMIT 1 )", ")",
            "WHERE job.id = (SELECT picked.id FROM picked)", "WHERE job.id IN (SELECT picked.id FROM picked)"),
        "locks more than it takes": Edit("LIMIT 1 )", ")",
            "WHERE job.id = (SELECT picked.id FROM picked)",
            "WHERE job.id = (SELECT min(picked.id) FROM picked)"),
        "no lock": Edit("FOR NO KEY UPDATE SKIP LOCKED", ""),
        "waits for locks": Edit("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        "shared lock": Edit("FOR NO KEY UPDATE", "FOR SHARE"),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "not materialized": same(MATERIALIZED, "AS MATERIALIZED", "AS"),
        "version stays": Edit("job.claim_version + 1", "job.claim_version"),
        "charges nothing": Edit("job.attempts + 1", "job.attempts"),
        "claimed at its transaction's start": Edit(
            "claimed_at = clock_timestamp()", "claimed_at = now()"
        ),
        "lease from its transaction's start": Edit(
            "lease_until = clock_timestamp()", "lease_until = now()"
        ),
        "every row": Edit("WHERE job.id = (SELECT picked.id FROM picked)", ""),
        "expired unless later": Edit("expires_at <= clock_timestamp()", "expires_at > clock_timestamp()"),
        "expired by its transaction's start": Edit(
            "expires_at <= clock_timestamp()", "expires_at <= now()"
        ),
        "expired a moment later": same(
            ONE_INSTANT, "expires_at <= clock_timestamp()", "expires_at < clock_timestamp()"
        ),
        "without an end neither expired nor not": Edit(
            "coalesce(job.expires_at <= clock_timestamp(), false)",
            "job.expires_at <= clock_timestamp()",
        ),
    }),
    *of_sql("find_crashed_job", {
        "any topic": Edit("job.topic = lane.topic AND", ""),
        "any priority": Edit("AND job.priority = lane.priority", ""),
        "without a position too": Edit("AND job.position IS NOT NULL", ""),
        "any order": Edit("ORDER BY job.position", ""),
        "of the whole lane": Edit("ORDER BY job.position LIMIT :limit", "ORDER BY job.position"),
        "valid claims too": Edit("front.lease_until <= clock_timestamp()", "front.lease_until IS NOT NULL"),
        "fresh ones too": Edit("WHERE front.lease_until <= clock_timestamp()", ""),
        "by its transaction's start": Edit("lease_until <= clock_timestamp()", "lease_until <= now()"),
        "a moment later": same(
            ONE_INSTANT, "lease_until <= clock_timestamp()", "lease_until < clock_timestamp()"
        ),
    }),
    *of_sql("extend_leases", {
        "any order": Edit("ORDER BY job_id", ""),
        "every version": Edit("AND job.claim_version = mine.claim_version", ""),
        "newer versions too": Edit(
            "job.claim_version = mine.claim_version", "job.claim_version >= mine.claim_version"
        ),
        "anybody's": Edit("job.claimed_by = :claimed_by", ":claimed_by IS NOT NULL"),
        "lapsed ones too": Edit("AND job.lease_until > clock_timestamp()", ""),
        "lapsed in its transaction too": Edit(
            "job.lease_until > clock_timestamp()", "job.lease_until > now()"
        ),
        "lapsed this moment too": same(
            ONE_INSTANT, "lease_until > clock_timestamp()", "lease_until >= clock_timestamp()"
        ),
        "no lock": Edit("FOR NO KEY UPDATE", ""),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "passes over what is locked": Edit("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED"),
        "not materialized": same(MATERIALIZED, "AS MATERIALIZED", "AS"),
        "lease from its transaction's start": Edit(
            "lease_until = clock_timestamp()", "lease_until = now()"
        ),
        "every row": Edit("WHERE job.id = ANY (ARRAY(SELECT claim.id FROM claim))", ""),
    }),
]  # fmt: skip
