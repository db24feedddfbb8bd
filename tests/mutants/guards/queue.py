"""Guards of the queue: what gets a place in it, and when."""

# ruff: noqa: E501 -- a table of texts

from __future__ import annotations

from tests.mutants.guards.claims import MATERIALIZED, ONE_INSTANT
from tests.mutants.mutant import Edit, of_sql, same

QUEUE = [
    *of_sql("insert_job", {
        "two numbers": same("""
            A volatile function (nextval) keeps a CTE from being inlined, so it is called once.""",
            "next AS MATERIALIZED", "next AS"),
        "an ordered job is ready": Edit("CAST(:ordering_key AS text) IS NULL AND NOT later", "NOT later"),
        "a later job is ready": Edit("IS NULL AND NOT later.is_later THEN", "IS NULL THEN"),
        "an ordered job waits for its time": Edit("WHEN CAST(:ordering_key AS text) IS NOT NULL THEN 'order'", ""),
        "a later job waits for nothing": Edit("WHEN later.is_later THEN 'schedule'", ""),
        "a time makes it later": Edit(
            "CAST(:available_at AS timestamptz) > clock_timestamp(), false",
            "CAST(:available_at AS timestamptz) IS NOT NULL, false",
        ),
        "later than its transaction's start": Edit(
            "CAST(:available_at AS timestamptz) > clock_timestamp()",
            "CAST(:available_at AS timestamptz) > now()",
        ),
        "later this moment": same(ONE_INSTANT,
            "CAST(:available_at AS timestamptz) > clock_timestamp()",
            "CAST(:available_at AS timestamptz) >= clock_timestamp()",
        ),
        "no time is neither": Edit(
            "coalesce(CAST(:available_at AS timestamptz) > clock_timestamp(), false)",
            "CAST(:available_at AS timestamptz) > clock_timestamp()",
        ),
        "always notifies": Edit("WHEN CAST(:notify AS boolean) AND", "WHEN"),
        "never notifies": Edit("WHEN CAST(:notify AS boolean) AND", "WHEN NOT CAST(:notify AS boolean) AND"),
        "a later job notifies": Edit("AND job.waiting IS DISTINCT FROM 'schedule'", ""),
        "a ready job does not notify": Edit(
            "job.waiting IS DISTINCT FROM 'schedule'", "job.waiting <> 'schedule'"
        ),
        "notifies though nobody is there": Edit("AND EXISTS ( SELECT 1 FROM outbox.consumer", "AND NOT EXISTS ( SELECT 1 FROM outbox.consumer"),
        "notifies whoever is awake": Edit("consumer.sleeps_until > clock_timestamp() AND", ""),
        "notifies who slept long ago": Edit(
            "consumer.sleeps_until > clock_timestamp()", "consumer.sleeps_until IS NOT NULL"
        ),
        "asleep by its transaction's start": Edit(
            "consumer.sleeps_until > clock_timestamp()", "consumer.sleeps_until > now()"
        ),
        "asleep till this moment": same(
            ONE_INSTANT, "sleeps_until > clock_timestamp()", "sleeps_until >= clock_timestamp()"
        ),
        "notifies for other topics": Edit("AND job.topic = ANY (consumer.topics)", ""),
    }),
    *of_sql("promote_due_jobs", {
        "every waiting job": Edit("job.waiting IN ('schedule', 'backoff')", "job.waiting IS NOT NULL"),
        "scheduled ones only": Edit("job.waiting IN ('schedule', 'backoff')", "job.waiting = 'schedule'"),
        "backing off ones only": Edit("job.waiting IN ('schedule', 'backoff')", "job.waiting = 'backoff'"),
        "before their time": Edit("AND job.available_at <= (SELECT clock_timestamp())", ""),
        "by its transaction's start": Edit("(SELECT clock_timestamp())", "(SELECT now())"),
        "a moment later": same(
            ONE_INSTANT, "available_at <= (SELECT clock_timestamp())",
            "available_at < (SELECT clock_timestamp())",
        ),
        "any order": Edit("ORDER BY job.available_at", ""),
        "latest first": Edit("ORDER BY job.available_at", "ORDER BY job.available_at DESC"),
        "all at once": Edit("LIMIT :limit", ""),
        "no lock": Edit("FOR NO KEY UPDATE SKIP LOCKED", ""),
        "waits for locks": Edit("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "not materialized": same(MATERIALIZED, "due AS MATERIALIZED", "due AS"),
        "places drawn twice": same("""
            A volatile function (nextval) keeps a CTE from being inlined, so it is called once.""",
            "place AS MATERIALIZED", "place AS"),
        "an open effect goes last": Edit("CASE WHEN job.retry_first THEN", "CASE WHEN false THEN"),
        "everything goes first": Edit("CASE WHEN job.retry_first THEN", "CASE WHEN true THEN"),
        "every row": Edit("WHERE job.id = ANY (ARRAY(SELECT due.id FROM due))", ""),
    }),
    *of_sql("insert_jobs", {
        "two numbers": same("""
            A volatile function (nextval) keeps a CTE from being inlined, so it is called once.""",
            "wanted AS MATERIALIZED", "wanted AS"),
        "in any order": Edit("ORDER BY job.ordinality", "ORDER BY job.ordinality DESC"),
        "an ordered job is ready": Edit("WHEN ordering_key IS NULL AND NOT", "WHEN NOT"),
        "a later job is ready": Edit("IS NULL AND NOT is_later THEN", "IS NULL THEN"),
        "an ordered job waits for its time": Edit("WHEN ordering_key IS NOT NULL THEN 'order'", ""),
        "a later job waits for nothing": Edit("WHEN is_later THEN 'schedule'", ""),
        "a time makes it later": Edit(
            "job.available_at > clock_timestamp(), false", "job.available_at IS NOT NULL, false"
        ),
        "later than its transaction's start": Edit("available_at > clock_timestamp()", "available_at > now()"),
        "later this moment": same(
            ONE_INSTANT, "available_at > clock_timestamp()", "available_at >= clock_timestamp()"
        ),
        "no time is neither": Edit(
            "coalesce(job.available_at > clock_timestamp(), false)", "job.available_at > clock_timestamp()"
        ),
        "always notifies": Edit("WHERE CAST(:notify AS boolean) AND", "WHERE"),
        "never notifies": Edit("WHERE CAST(:notify AS boolean) AND", "WHERE NOT CAST(:notify AS boolean) AND"),
        "notifies once a job": same("""
            EXISTS in the condition is one row at most, so is woken; materialized or not, PostgreSQL
            folds equal notifications of a transaction.""", "woken AS MATERIALIZED", "woken AS"),
        "a later job notifies": Edit("WHERE waiting IS DISTINCT FROM 'schedule'", ""),
        "a ready job does not notify": Edit("waiting IS DISTINCT FROM 'schedule'", "waiting <> 'schedule'"),
        "notifies though nobody is there": Edit("AND EXISTS ( SELECT 1 FROM outbox.consumer", "AND NOT EXISTS ( SELECT 1 FROM outbox.consumer"),
        "notifies whoever is awake": Edit("consumer.sleeps_until > clock_timestamp() AND", ""),
        "notifies who slept long ago": Edit(
            "consumer.sleeps_until > clock_timestamp()", "consumer.sleeps_until IS NOT NULL"
        ),
        "asleep by its transaction's start": Edit(
            "consumer.sleeps_until > clock_timestamp()", "consumer.sleeps_until > now()"
        ),
        "asleep till this moment": same(
            ONE_INSTANT, "sleeps_until > clock_timestamp()", "sleeps_until >= clock_timestamp()"
        ),
        "notifies for other topics": Edit("AND CAST(:topic AS text) = ANY (consumer.topics)", ""),
        "ids in any order": Edit("ORDER BY enqueued.id", "ORDER BY enqueued.id DESC"),
    }),
    *of_sql("release_held_jobs", {
        "every waiting job": Edit("job.waiting = 'resolve' AND", "job.waiting IS NOT NULL AND"),
        "held ones too": Edit(") <> 'held'", ") IS NOT NULL"),
        "delivered ones only": Edit(") <> 'held'", ") = 'delivered'"),
        "any key's effect": Edit("WHERE effect.effect_key = job.effect_key", "LIMIT 1"),
        "any order": same("""
            What is locked by somebody else is passed over, so no order can make two wait for each
            other; it keeps the planner on the index of held jobs.""", "ORDER BY job.effect_key", ""),
        "all at once": Edit("LIMIT :limit", ""),
        "no lock": Edit("FOR NO KEY UPDATE SKIP LOCKED", ""),
        "waits for locks": Edit("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "not materialized": same(MATERIALIZED, "AS MATERIALIZED", "AS"),
        "every row": Edit("WHERE job.id = ANY (ARRAY(SELECT released.id FROM released))", ""),
    }),
    *of_sql("release_ordered_jobs", {
        "no turns": Edit(
            "pg_try_advisory_xact_lock(hashtextextended('outbox.release_ordered_jobs', 0))", "true"
        ),
        "waits for its turn": Edit(
            "pg_try_advisory_xact_lock(hashtextextended('outbox.release_ordered_jobs', 0)) AS mine",
            "pg_advisory_xact_lock(hashtextextended('outbox.release_ordered_jobs', 0)) IS NOT NULL"
            " AS mine",
        ),
        "out of its turn": Edit("WHERE turn.mine AND", "WHERE"),
        "the turn not materialized": same("""
            A volatile function keeps a CTE from being inlined; and asked twice, a session gets the
            lock that it has.""", "turn AS MATERIALIZED", "turn AS"),
        "the heads not materialized": same("""
            One snapshot is read either way; the word keeps the update from being planned into the
            search for heads.""", "head AS MATERIALIZED", "head AS"),
        "the first line of any": same("""
            A line that has no blocked job has no head to let go: its pass finds nothing and goes on
            to the next.""",
            "WHERE job.waiting = 'order' ORDER BY job.ordering_key LIMIT 1",
            "WHERE job.ordering_key IS NOT NULL ORDER BY job.ordering_key LIMIT 1"),
        "from the last line": Edit(
            "WHERE job.waiting = 'order' ORDER BY job.ordering_key LIMIT 1",
            "WHERE job.waiting = 'order' ORDER BY job.ordering_key DESC LIMIT 1",
        ),
        "the next line of any": same("""
            As for the first one: a line without a blocked job is stepped over.""",
            "WHERE job.waiting = 'order' AND job.ordering_key > line.ordering_key",
            "WHERE job.ordering_key > line.ordering_key"),
        "to the last line": Edit(
            "job.ordering_key > line.ordering_key ORDER BY job.ordering_key LIMIT 1",
            "job.ordering_key > line.ordering_key ORDER BY job.ordering_key DESC LIMIT 1",
        ),
        "only the first line": Edit("FROM line WHERE line.ordering_key IS NOT NULL", "FROM line WHERE false"),
        "whatever it waits for": same("""
            A line with a job that waits for anything else, or for nothing, lets nobody go (see the
            next condition); in the others all jobs are blocked.""",
            "WHERE job.waiting = 'order' AND job.ordering_key = line.ordering_key",
            "WHERE job.ordering_key = line.ordering_key",
        ),
        "of another line": Edit("AND job.ordering_key = line.ordering_key ORDER BY job.id", "ORDER BY job.id"),
        "any of a line": Edit("ORDER BY job.id LIMIT 1", "LIMIT 1"),
        "the last of a line": Edit("ORDER BY job.id LIMIT 1", "ORDER BY job.id DESC LIMIT 1"),
        "all of a line": Edit("ORDER BY job.id LIMIT 1", "ORDER BY job.id"),
        "beside one that runs": Edit(") IS NULL LIMIT :limit", ") IS NULL OR true LIMIT :limit"),
        "behind any other line's": Edit("WHERE ahead.ordering_key = line.ordering_key AND", "WHERE ahead.ordering_key IS NOT NULL AND"),
        "beside a ready one": Edit("ahead.waiting IS DISTINCT FROM 'order'", "ahead.waiting <> 'order'"),
        "beside a waiting one": Edit("ahead.waiting IS DISTINCT FROM 'order'", "ahead.waiting IS NULL"),
        "all at once": Edit("LIMIT :limit", ""),
        "before its time": Edit(
            "WHEN job.available_at > clock_timestamp() THEN 'schedule'", "WHEN false THEN 'schedule'",
            "WHEN job.available_at > clock_timestamp() THEN NULL", "WHEN false THEN NULL",
        ),
        "a time that has passed": Edit(
            "WHEN job.available_at > clock_timestamp() THEN 'schedule'",
            "WHEN job.available_at IS NOT NULL THEN 'schedule'",
            "WHEN job.available_at > clock_timestamp() THEN NULL",
            "WHEN job.available_at IS NOT NULL THEN NULL",
        ),
        "by its transaction's start": Edit(
            "WHEN job.available_at > clock_timestamp() THEN 'schedule'",
            "WHEN job.available_at > now() THEN 'schedule'",
            "WHEN job.available_at > clock_timestamp() THEN NULL",
            "WHEN job.available_at > now() THEN NULL",
        ),
        "cancelled and released meanwhile": same("""
            Whoever else changes a blocked job deletes it (cancel), under a lock for which the update
            waits: then the row is gone. Releasing is one at a time.""",
            "AND job.waiting = 'order' RETURNING", "RETURNING"),
        "every row": Edit("WHERE job.id = ANY (ARRAY(SELECT head.id FROM head)) AND", "WHERE"),
    }),
    *of_sql("note_consumer", {
        "a second note is an error": Edit("""ON CONFLICT (claimed_by) DO UPDATE
            SET topics = excluded.topics,
                seen_until = excluded.seen_until,
                sleeps_until = excluded.sleeps_until""", ""),
        "a second note changes nothing": Edit("""ON CONFLICT (claimed_by) DO UPDATE
            SET topics = excluded.topics,
                seen_until = excluded.seen_until,
                sleeps_until = excluded.sleeps_until""", "ON CONFLICT DO NOTHING"),
        "the topics stay": Edit("topics = excluded.topics", "topics = consumer.topics"),
        "seen as before": Edit("seen_until = excluded.seen_until", "seen_until = consumer.seen_until"),
        "sleeps as before": Edit("sleeps_until = excluded.sleeps_until", "sleeps_until = consumer.sleeps_until"),
        "seen by its transaction's start": Edit("clock_timestamp() + :seen_seconds", "now() + :seen_seconds"),
        "sleeps by its transaction's start": Edit(
            "clock_timestamp() + CAST(:sleep_seconds", "now() + CAST(:sleep_seconds"
        ),
    }),
    *of_sql("forget_consumer", {
        "itself not": Edit("claimed_by = :claimed_by OR", "NOT claimed_by = :claimed_by AND"),
        "everybody": Edit("OR seen_until < clock_timestamp() - interval '1 hour'", "OR true"),
        "nobody else": Edit("OR seen_until < clock_timestamp() - interval '1 hour'", ""),
        "whoever missed a heartbeat": Edit("clock_timestamp() - interval '1 hour'", "clock_timestamp()"),
        "by its transaction's start": Edit("clock_timestamp() - interval", "now() - interval"),
    }),
]  # fmt: skip
