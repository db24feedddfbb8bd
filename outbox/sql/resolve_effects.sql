-- Writes a person's decision about held effects, and settles the jobs that wait beside them (locked
-- by lock_held_jobs; one that has come since is let back in by release_held_jobs). An effect that
-- is no longer held is left alone, and missing from the result.
WITH target AS MATERIALIZED (
    SELECT effect_key, job_id
    FROM outbox.effect
    WHERE effect_key = ANY (CAST(:effect_keys AS text[])) AND state = 'held'
    ORDER BY effect_key
    FOR NO KEY UPDATE
), written AS (
    UPDATE outbox.effect
    SET state = CASE CAST(:resolution AS text)
            WHEN 'delivered' THEN 'delivered' WHEN 'give_up' THEN 'given_up' ELSE 'open'
        END,
        request = CASE WHEN CAST(:resolution AS text) = 'send_again' THEN effect.request END,
        -- Given up, it still may have been sent; a later retry has to know.
        open_since = CASE WHEN CAST(:resolution AS text) = 'give_up' THEN effect.open_since END,
        settled_at = CASE
            WHEN CAST(:resolution AS text) <> 'send_again' THEN clock_timestamp()
        END,
        provider_message_id = coalesce(CAST(:message_id AS text), effect.provider_message_id),
        detail = left(concat_ws('; held before: ', CAST(:detail AS text), effect.detail), 500)
    FROM target
    WHERE effect.effect_key = target.effect_key
    RETURNING effect.effect_key, effect.topic
), removed AS (
    DELETE FROM outbox.job
    USING target
    WHERE job.id = ANY (CAST(:job_ids AS bigint[]))
        AND job.effect_key = target.effect_key
        AND CAST(:resolution AS text) <> 'send_again'
    RETURNING job.*, job.id = target.job_id AS delivered_itself
), ended AS (
    INSERT INTO outbox.ended_job (
        id, topic, priority, effect_key, payload, payload_fingerprint, ordering_key, max_attempts,
        expires_at, enqueued_at, attempts, claim_version, ended_as, reason, detail
    )
    SELECT
        id, topic, priority, effect_key, payload, payload_fingerprint, ordering_key, max_attempts,
        expires_at, enqueued_at, attempts, claim_version,
        CASE CAST(:resolution AS text) WHEN 'delivered' THEN 'duplicate' ELSE 'dead' END,
        CASE CAST(:resolution AS text) WHEN 'delivered' THEN 'delivered' ELSE 'given_up' END,
        CAST(:detail AS text)
    FROM removed
    WHERE CAST(:resolution AS text) = 'give_up' OR NOT delivered_itself
), requeued AS (
    UPDATE outbox.job
    SET waiting = NULL,
        position = nextval('outbox.job_position'),
        available_at = clock_timestamp(),
        -- An e-mail that may have been sent is not called off by its expiry: a person has decided.
        expires_at = NULL,
        retry_first = false,
        attempts = 0,
        last_error = CAST(:detail AS text)
    FROM target
    WHERE job.id = ANY (CAST(:job_ids AS bigint[]))
        AND job.effect_key = target.effect_key
        AND CAST(:resolution AS text) = 'send_again'
)
SELECT effect_key, topic FROM written ORDER BY effect_key
