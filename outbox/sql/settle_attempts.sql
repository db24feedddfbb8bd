-- Writes the outcomes of a batch of attempts, each fenced by its claim. Locks: the job rows, then
-- the ledger rows, each sorted (keys as the tables sort them: "C"). A ledger row is touched only
-- while it is open and nobody has begun a try since ours (requests_seen), with one exception: an
-- acceptance in hand moves an effect from open or held to delivered, whoever holds the claim by now.
-- An outcome whose ledger row has moved on sends its job back into the queue, unspent: the next
-- begin reads what to do. (After an outage one batch may hold two outcomes of one job, from two
-- claims: hence the numbers.)
WITH outcome AS (
    SELECT *, ordinality AS number
    FROM ROWS FROM (
        json_to_recordset(CAST(:outcomes AS json)) AS (
            job_id bigint, claim_version bigint, effect_key text COLLATE "C",
            requests_seen bigint, effect_state text, nothing_open boolean, message_id text,
            job_action text, refund boolean, delay_seconds float8, reason text, detail text
        )
    ) WITH ORDINALITY
    ORDER BY job_id
), claim AS MATERIALIZED (
    SELECT number
    FROM outcome
    CROSS JOIN LATERAL (
        SELECT 1
        FROM outbox.job
        WHERE job.id = outcome.job_id
            AND job.claim_version = outcome.claim_version
            AND job.claimed_by = :claimed_by
        FOR NO KEY UPDATE
    ) AS held
), target AS MATERIALIZED (
    SELECT number
    FROM (
        SELECT *, number IN (TABLE claim) AS claim_held
        FROM outcome
        WHERE effect_state IS NOT NULL
        ORDER BY effect_key
    ) AS wish
    CROSS JOIN LATERAL (
        SELECT 1
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
    SELECT DISTINCT ON (effect_key)
        outcome.*, effect_state = 'delivered' AS accepted, effect_state IN ('open', 'held') AS live
    FROM target
    JOIN outcome USING (number)
    ORDER BY effect_key, accepted DESC, job_id
), written AS (
    UPDATE outbox.effect
    SET state = effect_state,
        job_id = CASE WHEN accepted THEN chosen.job_id ELSE effect.job_id END,
        claim_version = CASE
            WHEN accepted THEN chosen.claim_version ELSE effect.claim_version
        END,
        attempted_by = CASE WHEN accepted THEN :claimed_by ELSE effect.attempted_by END,
        open_since = CASE WHEN nothing_open THEN NULL ELSE effect.open_since END,
        request = CASE WHEN live THEN effect.request END,
        provider_message_id = coalesce(message_id, effect.provider_message_id),
        settled_at = CASE WHEN NOT live THEN clock_timestamp() END,
        detail = coalesce(chosen.detail, chosen.reason)
    FROM chosen
    WHERE effect.effect_key = chosen.effect_key
        AND effect.effect_key = ANY (ARRAY(SELECT effect_key FROM chosen))
    RETURNING number
), decided AS MATERIALIZED (
    SELECT
        job_id, reason, detail, delay_seconds,
        CASE WHEN moved.on_ THEN 'retry_now' ELSE job_action END AS job_action,
        -- As a truth value: of words to compare with, the planner expects that one in a hundred fits.
        NOT moved.on_ AND job_action IN ('done', 'duplicate', 'dead', 'cancelled') AS ends,
        refund OR moved.on_ AS refund,
        effect_state = 'open' AND NOT nothing_open AS retry_first
    FROM claim
    JOIN outcome USING (number)
    CROSS JOIN LATERAL (
        SELECT effect_state IS NOT NULL AND number NOT IN (TABLE written) AS on_
    ) AS moved
), removed AS (
    DELETE FROM outbox.job
    USING decided
    WHERE job.id = decided.job_id
        AND job.id = ANY (ARRAY(SELECT job_id FROM decided))
        AND ends
    RETURNING job.*, job_action, reason, detail
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
        attempts = job.attempts - CASE WHEN refund THEN 1 ELSE 0 END,
        waiting = CASE job_action WHEN 'retry' THEN 'backoff' WHEN 'hold' THEN 'resolve' END,
        available_at = CASE
            WHEN job_action = 'retry'
            THEN clock_timestamp() + delay_seconds * interval '1 second'
            ELSE job.available_at
        END,
        position = CASE job_action
            WHEN 'give_back' THEN job.position
            WHEN 'retry_now' THEN nextval('outbox.job_position')
        END,
        retry_first = coalesce(decided.retry_first, job.retry_first),
        last_error = coalesce(reason, job.last_error)
    FROM decided
    WHERE job.id = decided.job_id
        AND job.id = ANY (ARRAY(SELECT job_id FROM decided))
        AND NOT ends
)
SELECT
    number,
    number IN (TABLE claim) AS claim_held,
    number IN (TABLE written) AS effect_written
FROM outcome
ORDER BY number
