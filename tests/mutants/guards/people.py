"""Guards of what people decide: cancel, retry, resolve, prune."""

# ruff: noqa: E501 -- a table of texts

from __future__ import annotations

from tests.mutants.guards.claims import MATERIALIZED, ONE_CHANGE, ONE_INSTANT
from tests.mutants.mutant import Edit, Mutant, of_sql, same


def _lock(statement: str, rows: str) -> list[Mutant]:
    """The guards that the locking statements have in common."""
    return of_sql(statement, {
        "every row": Edit(rows, "true"),
        "any order": Edit("ORDER BY id", ""),
        "no lock": Edit("FOR UPDATE", ""),
        "a shared lock": Edit("FOR UPDATE", "FOR SHARE"),
        "passes over what is locked": Edit("FOR UPDATE", "FOR UPDATE SKIP LOCKED"),
    })  # fmt: skip


PEOPLE = [
    *_lock("lock_jobs", "id = ANY (CAST(:job_ids AS bigint[]))"),
    *_lock("lock_ended_jobs", "id = ANY (CAST(:job_ids AS bigint[]))"),
    *_lock("lock_held_jobs", "effect_key = ANY (CAST(:effect_keys AS text[]))"),
    *of_sql("lock_held_jobs", {
        "whatever it waits for": Edit("waiting = 'resolve' AND", ""),
    }),
    *of_sql("cancel_jobs", {
        "a running one": Edit("WHEN job.lease_until > clock_timestamp() THEN 'running'", ""),
        "no crashed one": Edit("job.lease_until > clock_timestamp()", "job.lease_until IS NOT NULL"),
        "crashed by the transaction's start": Edit("lease_until > clock_timestamp()", "lease_until > now()"),
        "crashed this moment": same(
            ONE_INSTANT, "lease_until > clock_timestamp()", "lease_until >= clock_timestamp()"
        ),
        "a delivered one": Edit("IN ('delivered', 'held')", "= 'held'"),
        "a held one": Edit("IN ('delivered', 'held')", "= 'delivered'"),
        "one that may have been sent": Edit(
            "WHEN effect.open_since IS NOT NULL THEN 'may_have_been_sent'", ""
        ),
        "none with a row in the ledger": Edit("effect.open_since IS NOT NULL", "effect.effect_key IS NOT NULL"),
        "by another topic's effect": Edit("AND effect.topic = job.topic", ""),
        "by another payload's effect": Edit("AND effect.payload_fingerprint = job.payload_fingerprint", ""),
        "by any key's effect": Edit("effect.effect_key = job.effect_key AND", ""),
        "every job": Edit("WHERE job.id = ANY (CAST(:job_ids AS bigint[]))", ""),
        "judged not materialized": same("""
            It is read twice, and what is read twice is materialized.""",
            "AS MATERIALIZED", "AS"),
        "too late or not": Edit("AND judged.too_late IS NULL", ""),
        "others' rows": Edit("job.id = judged.id AND", ""),
    }),
    *of_sql("retry_jobs", {
        "a duplicate": Edit("WHEN ended.ended_as = 'duplicate' THEN 'duplicate'", "WHEN false THEN NULL"),
        "without its payload": Edit("WHEN ended.payload IS NULL THEN 'payload_pruned'", ""),
        "an expired one": Edit(
            "WHEN ended.expires_at <= clock_timestamp() AND NOT CAST(:ignore_expiry AS boolean) THEN 'expired'",
            "",
        ),
        "no expired one, whoever asks": Edit("AND NOT CAST(:ignore_expiry AS boolean)", ""),
        "expired by the transaction's start": Edit("expires_at <= clock_timestamp()", "expires_at <= now()"),
        "expired a moment later": same(
            ONE_INSTANT, "expires_at <= clock_timestamp()", "expires_at < clock_timestamp()"
        ),
        "by another effect's state": Edit("WHEN NOT same.effect THEN NULL", ""),
        "a delivered one": Edit("WHEN effect.state = 'delivered' THEN 'delivered'", ""),
        "a held one": Edit("WHEN effect.state = 'held' THEN 'held'", ""),
        "one that may have been sent": Edit(
            "AND effect.open_since IS NOT NULL AND NOT CAST(:send_again AS boolean)", "AND false"
        ),
        "none that was given up": Edit("AND effect.open_since IS NOT NULL", ""),
        "none that is open": Edit("WHEN effect.state = 'given_up' AND", "WHEN"),
        "none that may have been sent, whoever asks": Edit("AND NOT CAST(:send_again AS boolean)", ""),
        "every topic is the same": Edit("effect.topic = ended.topic AND", ""),
        "every payload is the same": Edit("AND effect.payload_fingerprint = ended.payload_fingerprint", ""),
        "no effect is another effect": Edit("true ) AS effect", "false ) AS effect"),
        "no effect is neither": Edit(
            "coalesce( effect.topic = ended.topic AND effect.payload_fingerprint = ended.payload_fingerprint, true )",
            "(effect.topic = ended.topic AND effect.payload_fingerprint = ended.payload_fingerprint)",
        ),
        "every job": Edit("WHERE ended.id = ANY (CAST(:job_ids AS bigint[]))", ""),
        "the judged not materialized": same("""
            It is read more than once, and what is read more than once is materialized.""",
            "judged AS MATERIALIZED", "judged AS"),
        "every effect but these": Edit("WHERE effect.effect_key IN (", "WHERE effect.effect_key NOT IN ("),
        "back since its transaction's start": Edit("max_attempts, clock_timestamp(),", "max_attempts, now(),"),
        "a refused job's effect": Edit("WHERE refusal IS NULL AND NOT conflicts", "WHERE NOT conflicts"),
        "another's effect": Edit("refusal IS NULL AND NOT conflicts", "refusal IS NULL"),
        "every effect's state": Edit("AND effect.state IN ('rejected', 'given_up')", ""),
        "rejected only": Edit("effect.state IN ('rejected', 'given_up')", "effect.state = 'rejected'"),
        "given up only": Edit("effect.state IN ('rejected', 'given_up')", "effect.state = 'given_up'"),
        "a dry run reopens": Edit("AND NOT CAST(:dry_run AS boolean) ORDER BY", "ORDER BY"),
        "any order of keys": Edit("ORDER BY effect.effect_key", ""),
        "no lock of the effect": Edit("FOR NO KEY UPDATE", ""),
        "stronger lock of the effect": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "the targets not materialized": same(MATERIALIZED, "target AS MATERIALIZED", "target AS"),
        "every effect": Edit("WHERE effect.effect_key = target.effect_key", ""),
        "a refused job comes back": Edit("AND judged.refusal IS NULL AND NOT", "AND NOT"),
        "a dry run brings back": Edit("AND NOT CAST(:dry_run AS boolean) RETURNING", "RETURNING"),
        "others come back": Edit("ended_job.id = judged.id AND", ""),
        "an ordered one is ready": Edit(
            "CASE WHEN ordering_key IS NULL THEN nextval('outbox.job_position') END",
            "nextval('outbox.job_position')",
            "CASE WHEN ordering_key IS NOT NULL THEN 'order' END", "CAST(NULL AS text)",
        ),
        "comes back only to expire": Edit("CASE WHEN expires_at > clock_timestamp() THEN expires_at END", "expires_at"),
        "never expires": Edit("CASE WHEN expires_at > clock_timestamp() THEN expires_at END", "CAST(NULL AS timestamptz)"),
        "expires by the transaction's start": Edit("expires_at > clock_timestamp()", "expires_at > now()"),
        "expires this moment": same(
            ONE_INSTANT, "expires_at > clock_timestamp()", "expires_at >= clock_timestamp()"
        ),
        "the version starts again": Edit("END, claim_version, left(", "END, 0, left("),
        "back in any order": Edit("(SELECT * FROM removed ORDER BY id)", "(SELECT * FROM removed ORDER BY id DESC)"),
        "an error without its past": Edit("coalesce(effect.detail, effect.state)", "effect.detail"),
    }),
    *of_sql("resolve_effects", {
        "every key": Edit("effect_key = ANY (CAST(:effect_keys AS text[])) AND", ""),
        "every state": Edit("AND state = 'held'", ""),
        "open ones too": Edit("state = 'held'", "state IN ('held', 'open')"),
        "any order": Edit("ORDER BY effect_key FOR NO KEY", "FOR NO KEY"),
        "no lock": Edit("FOR NO KEY UPDATE", ""),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "not materialized": same(MATERIALIZED, "AS MATERIALIZED", "AS"),
        "send again drops the request": Edit(
            "CASE WHEN CAST(:resolution AS text) = 'send_again' THEN effect.request END", "NULL"),
        "delivered is given up": Edit("WHEN 'delivered' THEN 'delivered' WHEN 'give_up'", "WHEN 'delivered' THEN 'given_up' WHEN 'give_up'"),
        "a delivered effect's jobs are dead": Edit("WHEN 'delivered' THEN 'duplicate' ELSE", "WHEN 'delivered' THEN 'dead' ELSE"),
        "a delivered effect's jobs are given up": Edit(
            "WHEN 'delivered' THEN 'delivered' ELSE 'given_up' END", "WHEN 'delivered' THEN 'given_up' ELSE 'given_up' END"
        ),
        "sent again since its transaction's start": Edit("available_at = clock_timestamp()", "available_at = now()"),
        "the request stays": Edit(
            "CASE WHEN CAST(:resolution AS text) = 'send_again' THEN effect.request END", "effect.request"
        ),
        "given up is not open": Edit(
            "CASE WHEN CAST(:resolution AS text) = 'give_up' THEN effect.open_since END", "NULL"
        ),
        "delivered stays open": Edit(
            "CASE WHEN CAST(:resolution AS text) = 'give_up' THEN effect.open_since END", "effect.open_since"
        ),
        "sent again is settled": Edit(
            "CASE WHEN CAST(:resolution AS text) <> 'send_again' THEN clock_timestamp() END", "clock_timestamp()"
        ),
        "settled at its transaction's start": Edit("<> 'send_again' THEN clock_timestamp()", "<> 'send_again' THEN now()"),
        "a known id is lost": Edit(
            "coalesce(CAST(:message_id AS text), effect.provider_message_id)", "CAST(:message_id AS text)"
        ),
        "every effect": Edit("WHERE effect.effect_key = target.effect_key", ""),
        "jobs that came since end": Edit(
            "WHERE job.id = ANY (CAST(:job_ids AS bigint[])) AND job.effect_key = target.effect_key AND CAST(:resolution AS text) <> 'send_again'",
            "WHERE job.effect_key = target.effect_key AND CAST(:resolution AS text) <> 'send_again'",
        ),
        "jobs of other keys end": Edit(
            "AND job.effect_key = target.effect_key AND CAST(:resolution AS text) <> 'send_again'",
            "AND CAST(:resolution AS text) <> 'send_again'",
        ),
        "sent again, the job ends": same(ONE_CHANGE,
            "AND CAST(:resolution AS text) <> 'send_again' RETURNING job.*", "RETURNING job.*"
        ),
        "the job of record ends beside its effect": Edit(
            "WHERE CAST(:resolution AS text) = 'give_up' OR NOT delivered_itself", ""
        ),
        "given up, the job of record vanishes": Edit("CAST(:resolution AS text) = 'give_up' OR", ""),
        "jobs that came since go again": Edit(
            "FROM target WHERE job.id = ANY (CAST(:job_ids AS bigint[])) AND job.effect_key = target.effect_key AND CAST(:resolution AS text) = 'send_again'",
            "FROM target WHERE job.effect_key = target.effect_key AND CAST(:resolution AS text) = 'send_again'",
        ),
        "jobs of other keys go again": Edit(
            "AND job.effect_key = target.effect_key AND CAST(:resolution AS text) = 'send_again'",
            "AND CAST(:resolution AS text) = 'send_again'",
        ),
        "every job goes again": Edit("AND CAST(:resolution AS text) = 'send_again' )", ")"),
        "its expiry calls it off": Edit("expires_at = NULL,", ""),
        "it goes first for ever": Edit("retry_first = false,", ""),
        "its attempts are spent": Edit("attempts = 0,", ""),
    }),
    *of_sql("prune_ended_jobs", {
        "of any end": Edit("ended_as = CAST(:ended_as AS text) AND", ""),
        "from the beginning": Edit(
            "AND (ended_at, id) > (CAST(:after_ended_at AS timestamptz), CAST(:after_id AS bigint))", ""
        ),
        "the last one again": same("""
            The last row of the batch before has no payload any more, and is passed over for that.""",
            "(ended_at, id) > (CAST(", "(ended_at, id) >= (CAST("),
        "younger ones": Edit(
            "AND ended_at < clock_timestamp() - CAST(:days AS float8) * interval '24 hours'", ""
        ),
        "by the transaction's start": Edit("ended_at < clock_timestamp() -", "ended_at < now() -"),
        "of this moment": same(ONE_INSTANT, "ended_at < clock_timestamp()", "ended_at <= clock_timestamp()"),
        "pruned ones again": Edit("AND payload IS NOT NULL", ""),
        "any order": Edit("ORDER BY ended_at, id LIMIT", "LIMIT"),
        "all at once": Edit("LIMIT :limit", ""),
        "no lock": Edit("FOR NO KEY UPDATE SKIP LOCKED", ""),
        "waits for locks": Edit("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),
        "stronger lock": Edit("FOR NO KEY UPDATE SKIP LOCKED", "FOR UPDATE SKIP LOCKED"),
        "not materialized": same(MATERIALIZED, "old AS MATERIALIZED", "old AS"),
        "every payload": Edit("WHERE ended_job.id = ANY (ARRAY(SELECT old.id FROM old))", ""),
        "another job's request": Edit("AND effect.job_id = old.id", ""),
        "another key's request": Edit("effect.effect_key = old.effect_key AND", ""),
        "a held one's request": same("""
            By the table's own constraints a held effect is open (open_since is set), and of the
            others only open ones have a request.""",
            "effect.state = 'open' AND", ""),
        "an open one's request": Edit("AND effect.open_since IS NULL AND", "AND"),
        "no request again": same("""
            A request that is gone is set to nothing once more; the condition spares the write.""",
            "AND effect.request IS NOT NULL", ""),
        "any order of keys": Edit("ORDER BY effect_key) AS old", ") AS old"),
        "no lock of the effect": Edit("FOR NO KEY UPDATE ) AS locked", ") AS locked"),
        "stronger lock of the effect": Edit("FOR NO KEY UPDATE ) AS locked", "FOR UPDATE ) AS locked"),
        "targets not materialized": same(MATERIALIZED, "target AS MATERIALIZED", "target AS"),
        "every request": Edit(
            "WHERE effect.effect_key = ANY (ARRAY(SELECT target.effect_key FROM target))", ""
        ),
    }),
]  # fmt: skip
