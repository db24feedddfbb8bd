"""Guards of settling: whose outcome counts, for which try, and what becomes of the job."""

# ruff: noqa: E501 -- a table of texts

from __future__ import annotations

from tests.mutants.guards.claims import BY_INDEX, MATERIALIZED, ONE_CHANGE
from tests.mutants.mutant import Edit, of_sql, same

SETTLING = [
    *of_sql("settle_attempts", {
        "any order of jobs": Edit("ORDER BY job_id", ""),
        "no fence": Edit(
            "AND job.claim_version = outcome.claim_version AND job.claimed_by = :claimed_by", ""
        ),
        "every version": Edit("AND job.claim_version = outcome.claim_version", ""),
        "newer versions too": Edit(
            "job.claim_version = outcome.claim_version", "job.claim_version >= outcome.claim_version"
        ),
        "anybody's": Edit("AND job.claimed_by = :claimed_by", ""),
        "a lapsed lease keeps it out": Edit(
            "job.claimed_by = :claimed_by",
            "job.claimed_by = :claimed_by AND job.lease_until > clock_timestamp()",
        ),
        "no lock of the job": Edit("FOR NO KEY UPDATE ) AS held", ") AS held"),
        "stronger lock of the job": Edit("FOR NO KEY UPDATE ) AS held", "FOR UPDATE ) AS held"),
        "passes over a locked job": Edit(
            "FOR NO KEY UPDATE ) AS held", "FOR NO KEY UPDATE SKIP LOCKED ) AS held"
        ),
        "claims not materialized": same(MATERIALIZED, "claim AS MATERIALIZED", "claim AS"),
        "targets not materialized": same(MATERIALIZED, "target AS MATERIALIZED", "target AS"),
        "decisions not materialized": same("""
            It is read twice (by removed and by kept), and what is read twice is materialized.""",
            "decided AS MATERIALIZED", "decided AS"),
        "an untouched effect is written": Edit("WHERE effect_state IS NOT NULL", ""),
        "every claim holds for the ledger": Edit(
            "SELECT *, number IN (TABLE claim) AS claim_held", "SELECT *, true AS claim_held"
        ),
        "any order of keys": Edit("ORDER BY effect_key ) AS wish", ") AS wish"),
        "keys in an order of the database": Edit('effect_key text COLLATE "C"', "effect_key text"),
        "another key's row": Edit("effect.effect_key = wish.effect_key AND (", "true AND ("),
        "the ledger asks for no claim": Edit("wish.claim_held AND", ""),
        "a settled effect is written over": Edit("AND effect.state = 'open' AND", "AND"),
        "a held effect is written over": Edit(
            "effect.state = 'open' AND", "effect.state IN ('open', 'held') AND"
        ),
        "an older try's outcome counts": Edit(
            "AND effect.requests_sent = wish.requests_seen", ""
        ),
        "an older try's outcome counts, a newer one's not": Edit(
            "effect.requests_sent = wish.requests_seen", "effect.requests_sent >= wish.requests_seen"
        ),
        "holds what is not open": Edit(
            "AND (wish.effect_state <> 'held' OR effect.open_since IS NOT NULL)", ""
        ),
        "holds nothing": Edit("OR effect.open_since IS NOT NULL", ""),
        "an acceptance in hand is nothing": Edit(
            "OR (wish.effect_state = 'delivered' AND effect.state IN ('open', 'held'))", ""
        ),
        "any outcome in hand counts": Edit("wish.effect_state = 'delivered' AND effect.state", "effect.state"),
        "an acceptance does not move a held one": Edit(
            "'delivered' AND effect.state IN ('open', 'held')", "'delivered' AND effect.state = 'open'"
        ),
        "an acceptance moves a held one only": Edit(
            "'delivered' AND effect.state IN ('open', 'held')", "'delivered' AND effect.state = 'held'"
        ),
        "an acceptance moves every one": Edit(
            "'delivered' AND effect.state IN ('open', 'held')", "'delivered'"
        ),
        "no lock of the effect": Edit("FOR NO KEY UPDATE ) AS locked", ") AS locked"),
        "stronger lock of the effect": Edit("FOR NO KEY UPDATE ) AS locked", "FOR UPDATE ) AS locked"),
        "passes over a locked effect": Edit(
            "FOR NO KEY UPDATE ) AS locked", "FOR NO KEY UPDATE SKIP LOCKED ) AS locked"
        ),
        "any of a key": same("""
            A row is changed once in a statement: by the first that the join brings, and while it reads
            what was chosen from front to back, that is the one to be chosen. The word leaves nothing
            to the join.""",
            "DISTINCT ON (effect_key)", ""),
        "an acceptance does not go first": Edit("ORDER BY effect_key, accepted DESC,", "ORDER BY effect_key,"),
        "an acceptance goes last": Edit("accepted DESC", "accepted"),
        "any job of a key": same("""
            Equal ones come in the order of the join, which reads what outcome has sorted by job; the
            column says so, and does not leave it to the plan.""",
            "accepted DESC, job_id", "accepted DESC"),
        "the last job of a key": Edit("accepted DESC, job_id", "accepted DESC, job_id DESC"),
        "what is open is accepted": Edit("effect_state = 'delivered' AS accepted", "effect_state <> 'held' AS accepted"),
        "whoever settles is the job of record": Edit(
            "CASE WHEN accepted THEN chosen.job_id ELSE effect.job_id END", "chosen.job_id"
        ),
        "the job of record stays": Edit(
            "CASE WHEN accepted THEN chosen.job_id ELSE effect.job_id END", "effect.job_id"
        ),
        "the version of record stays": Edit("WHEN accepted THEN chosen.claim_version", "WHEN false THEN chosen.claim_version"),
        "whoever settles is the version of record": Edit(
            "WHEN accepted THEN chosen.claim_version", "WHEN true THEN chosen.claim_version"
        ),
        "the consumer of record stays": Edit("WHEN accepted THEN :claimed_by", "WHEN false THEN :claimed_by"),
        "whoever settles is the consumer of record": Edit(
            "WHEN accepted THEN :claimed_by", "WHEN true THEN :claimed_by"
        ),
        "nothing is open any more": Edit("WHEN nothing_open THEN NULL", "WHEN true THEN NULL"),
        "it stays open": Edit("WHEN nothing_open THEN NULL", "WHEN false THEN NULL"),
        "the request of an open one goes": Edit("effect_state IN ('open', 'held') AS live", "effect_state = 'held' AS live"),
        "the request of a held one goes": Edit("effect_state IN ('open', 'held') AS live", "effect_state = 'open' AS live"),
        "the request stays": Edit("CASE WHEN live THEN effect.request END", "effect.request"),
        "an id that was known is lost": Edit(
            "coalesce(message_id, effect.provider_message_id)", "message_id"
        ),
        "settled while it is open or held": Edit("CASE WHEN NOT live THEN clock_timestamp() END", "clock_timestamp()"),
        "settled at its transaction's start": Edit("NOT live THEN clock_timestamp()", "NOT live THEN now()"),
        "no detail, no reason": Edit("coalesce(chosen.detail, chosen.reason)", "chosen.detail"),
        "every effect": Edit("WHERE effect.effect_key = chosen.effect_key AND", "WHERE"),
        "looks through the ledger": same(BY_INDEX,
            "AND effect.effect_key = ANY (ARRAY(SELECT effect_key FROM chosen))", ""
        ),
        "what has moved on is not asked again": Edit(
            "WHEN moved.on_ THEN 'retry_now'", "WHEN false THEN 'retry_now'"
        ),
        "what has moved on is charged": Edit("refund OR moved.on_", "refund"),
        "everything is refunded": Edit("refund OR moved.on_", "true"),
        "nothing is refunded": Edit("refund OR moved.on_", "moved.on_"),
        "an open try does not go first": Edit("effect_state = 'open' AND NOT nothing_open AS", "false AS"),
        "what was surely not sent goes first": Edit(
            "effect_state = 'open' AND NOT nothing_open AS", "effect_state = 'open' AS"
        ),
        "a held one goes first": Edit("effect_state = 'open' AND NOT nothing_open AS", "NOT nothing_open AS"),
        "an untouched effect has moved on": Edit("SELECT effect_state IS NOT NULL AND", "SELECT"),
        "a written effect has moved on": Edit("AND number NOT IN (TABLE written) AS on_", "AS on_"),
        "what has moved on ends": Edit("NOT moved.on_ AND job_action IN", "job_action IN"),
        "every job ends": Edit(
            "AND job_action IN ('done', 'duplicate', 'dead', 'cancelled') AS ends", "AS ends"
        ),
        "every job is removed": same(ONE_CHANGE, "AND ends RETURNING", "RETURNING"),
        "others' jobs are removed": Edit(
            "job.id = decided.job_id AND job.id = ANY (ARRAY(SELECT job_id FROM decided)) AND ends",
            "job.id = ANY (ARRAY(SELECT job_id FROM decided)) AND ends",
        ),
        "looks through all jobs for one to remove": same(BY_INDEX,
            "AND job.id = ANY (ARRAY(SELECT job_id FROM decided)) AND ends", "AND ends"
        ),
        "looks through all jobs for one to keep": same(BY_INDEX,
            "AND job.id = ANY (ARRAY(SELECT job_id FROM decided)) AND NOT ends", "AND NOT ends"
        ),
        "a delivered job ends twice": Edit("WHERE job_action <> 'done'", ""),
        "every attempt is given back": Edit(
            "CASE WHEN refund THEN 1 ELSE 0 END", "1"
        ),
        "no attempt is given back": Edit("CASE WHEN refund THEN 1 ELSE 0 END", "0"),
        "a retry does not wait": Edit("WHEN 'retry' THEN 'backoff'", ""),
        "a held job does not wait": Edit("WHEN 'hold' THEN 'resolve'", ""),
        "a retry is due at once": Edit("clock_timestamp() + delay_seconds", "clock_timestamp() + 0 * delay_seconds"),
        "a retry is due from its transaction's start": Edit("clock_timestamp() + delay_seconds", "now() + delay_seconds"),
        "any outcome sets the time": Edit(
            "CASE WHEN job_action = 'retry' THEN clock_timestamp()",
            "CASE WHEN true THEN clock_timestamp()",
        ),
        "what is given back goes to the end": Edit(
            "WHEN 'give_back' THEN job.position", "WHEN 'give_back' THEN nextval('outbox.job_position')"
        ),
        "what has moved on keeps its place": Edit(
            "WHEN 'retry_now' THEN nextval('outbox.job_position')", "WHEN 'retry_now' THEN job.position"
        ),
        "a job forgets that it goes first": Edit(
            "coalesce(decided.retry_first, job.retry_first)", "coalesce(decided.retry_first, false)"
        ),
        "a job forgets its error": Edit("coalesce(reason, job.last_error)", "reason"),
        "an ended job is kept": Edit("AND NOT ends", ""),
        "others' jobs are kept": Edit(
            "job.id = decided.job_id AND job.id = ANY (ARRAY(SELECT job_id FROM decided)) AND NOT ends",
            "job.id = ANY (ARRAY(SELECT job_id FROM decided)) AND NOT ends",
        ),
        "the claim stays": Edit(
            "claimed_by = NULL, claimed_at = NULL, lease_until = NULL,",
            "",
        ),
        "the answers in any order": Edit("FROM outcome ORDER BY number", "FROM outcome ORDER BY number DESC"),
        "the holder hears that its claim held": Edit(
            "number, number IN (TABLE claim) AS claim_held", "number, true AS claim_held"
        ),
        "the holder hears that its effect was written": Edit(
            "number IN (TABLE written) AS effect_written", "true AS effect_written"
        ),
    }),
]  # fmt: skip
