-- Writes the outcomes of a batch of attempts, each fenced by its claim. Locks: the job rows, then
-- the ledger rows, each sorted. A ledger row is touched only while it is open and nobody has begun
-- a try since ours (requests_seen), with one exception: an acceptance in hand moves an effect from
-- open or held to delivered, whoever holds the claim by now. An outcome whose ledger row has moved
-- on sends its job back into the queue, unspent: the next begin reads what to do.
WITH outcome AS (
    SELECT *
    FROM unnest(
        CAST(:job_ids AS bigint[]), CAST(:claim_versions AS bigint[]), CAST(:effect_keys AS text[]),
        CAST(:requests_seen AS bigint[]), CAST(:effect_states AS text[]),
        CAST(:nothing_open AS boolean[]), CAST(:message_ids AS text[]), CAST(:job_actions AS text[]),
        CAST(:refunds AS boolean[]), CAST(:delays_seconds AS float8[]), CAST(:reasons AS text[]),
        CAST(:details AS text[])
    ) AS outcome (
        job_id, claim_version, effect_key, requests_seen, effect_state, nothing_open, message_id,
        job_action, refund, delay_seconds, reason, detail
    )
    ORDER BY job_id
), claim AS MATERIALIZED (
    SELECT held.id
    FROM outcome
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM outbox.job
        WHERE job.id = outcome.job_id
            AND job.claim_version = outcome.claim_version
            AND job.claimed_by = :claimed_by
        FOR NO KEY UPDATE
    ) AS held
), target AS MATERIALIZED (
    SELECT locked.effect_key, wish.job_id
    FROM (
        SELECT
            outcome.job_id, outcome.effect_key, outcome.effect_state, outcome.requests_seen,
            outcome.job_id IN (SELECT claim.id FROM claim) AS claim_held
        FROM outcome
        WHERE outcome.effect_state IS NOT NULL
        ORDER BY outcome.effect_key
    ) AS wish
    CROSS JOIN LATERAL (
        SELECT effect.effect_key
        FROM outbox.effect
        WHERE effect.effect_key = wish.effect_key
            AND (
                (
                    wish.claim_held
                    AND effect.state = 'open'
                    AND effect.requests_sent = wish.requests_seen
                    -- Since we read, the open try may have been proven unsent: nothing to hold then.
                    AND (wish.effect_state <> 'held' OR effect.open_since IS NOT NULL)
                )
                OR (wish.effect_state = 'delivered' AND effect.state IN ('open', 'held'))
            )
        FOR NO KEY UPDATE
    ) AS locked
), chosen AS (
    -- Jobs of one key may be settled in one batch: an acceptance goes before all else.
    SELECT DISTINCT ON (outcome.effect_key) outcome.*
    FROM target
    JOIN outcome ON outcome.job_id = target.job_id
    ORDER BY outcome.effect_key, outcome.effect_state = 'delivered' DESC, outcome.job_id
), written AS (
    UPDATE outbox.effect
    SET state = outcome.effect_state,
        job_id = CASE
            WHEN outcome.effect_state = 'delivered' THEN outcome.job_id ELSE effect.job_id
        END,
        claim_version = CASE
            WHEN outcome.effect_state = 'delivered' THEN outcome.claim_version
            ELSE effect.claim_version
        END,
        attempted_by = CASE
            WHEN outcome.effect_state = 'delivered' THEN :claimed_by ELSE effect.attempted_by
        END,
        open_since = CASE WHEN outcome.nothing_open THEN NULL ELSE effect.open_since END,
        request = CASE
            WHEN outcome.effect_state IN ('open', 'held') THEN effect.request
        END,
        provider_message_id = coalesce(outcome.message_id, effect.provider_message_id),
        settled_at = CASE
            WHEN outcome.effect_state NOT IN ('open', 'held') THEN clock_timestamp()
        END,
        detail = coalesce(outcome.detail, outcome.reason)
    FROM chosen AS outcome
    WHERE effect.effect_key = outcome.effect_key
    RETURNING outcome.job_id
), decided AS MATERIALIZED (
    SELECT
        claim.id, outcome.reason, outcome.detail, outcome.delay_seconds,
        CASE
            WHEN moved.on_ THEN 'retry_now' ELSE outcome.job_action
        END AS job_action,
        outcome.refund OR moved.on_ AS refund,
        outcome.effect_state = 'open' AND NOT outcome.nothing_open AS retry_first
    FROM claim
    JOIN outcome ON outcome.job_id = claim.id
    CROSS JOIN LATERAL (
        SELECT outcome.effect_state IS NOT NULL
            AND outcome.job_id NOT IN (SELECT written.job_id FROM written) AS on_
    ) AS moved
), removed AS (
    DELETE FROM outbox.job
    USING decided
    WHERE job.id = decided.id
        AND decided.job_action IN ('done', 'duplicate', 'dead', 'cancelled')
    RETURNING job.*, decided.job_action, decided.reason, decided.detail
), ended AS (
    INSERT INTO outbox.ended_job (
        id, topic, priority, effect_key, payload, payload_fingerprint, ordering_key, max_attempts,
        expires_at, enqueued_at, attempts, claim_version, ended_as, reason, detail
    )
    SELECT
        id, topic, priority, effect_key, payload, payload_fingerprint, ordering_key, max_attempts,
        expires_at, enqueued_at, attempts, claim_version, job_action, reason, detail
    FROM removed
    WHERE job_action <> 'done'
), kept AS (
    UPDATE outbox.job
    SET claimed_by = NULL,
        claimed_at = NULL,
        lease_until = NULL,
        attempts = job.attempts - CASE WHEN decided.refund THEN 1 ELSE 0 END,
        waiting = CASE decided.job_action WHEN 'retry' THEN 'backoff' WHEN 'hold' THEN 'resolve' END,
        available_at = CASE
            WHEN decided.job_action = 'retry'
            THEN clock_timestamp() + decided.delay_seconds * interval '1 second'
            ELSE job.available_at
        END,
        position = CASE
            WHEN decided.job_action = 'give_back' THEN job.position
            WHEN decided.job_action = 'retry_now' THEN nextval('outbox.job_position')
        END,
        retry_first = coalesce(decided.retry_first, job.retry_first),
        last_error = coalesce(decided.reason, job.last_error)
    FROM decided
    WHERE job.id = decided.id
        AND decided.job_action IN ('retry', 'retry_now', 'hold', 'give_back')
)
SELECT
    outcome.job_id,
    outcome.job_id IN (SELECT claim.id FROM claim) AS claim_held,
    outcome.job_id IN (SELECT written.job_id FROM written) AS effect_written
FROM outcome
