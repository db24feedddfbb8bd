-- Brings ended jobs (locked by lock_ended_jobs) back into the queue under their old id, key and
-- claim_version, and reopens an effect that was refused or given up, to be rendered and frozen
-- anew. Says of each job why it was refused, or that its key stands for another effect.
WITH judged AS MATERIALIZED (
    SELECT
        ended.id,
        effect.effect_key,
        CASE
            WHEN ended.ended_as = 'duplicate' THEN 'duplicate'
            WHEN ended.payload IS NULL THEN 'payload_pruned'
            WHEN ended.expires_at <= clock_timestamp() AND NOT CAST(:ignore_expiry AS boolean)
            THEN 'expired'
            WHEN NOT same.effect THEN NULL
            WHEN effect.state = 'delivered' THEN 'delivered'
            WHEN effect.state = 'held' THEN 'held'
            WHEN effect.state = 'given_up'
                AND effect.open_since IS NOT NULL
                AND NOT CAST(:send_again AS boolean)
            THEN 'may_have_been_sent'
        END AS refusal,
        NOT same.effect AS conflicts
    FROM outbox.ended_job AS ended
    LEFT JOIN outbox.effect USING (effect_key)
    CROSS JOIN LATERAL (
        SELECT coalesce(
            effect.topic = ended.topic AND effect.payload_fingerprint = ended.payload_fingerprint,
            true
        ) AS effect
    ) AS same
    WHERE ended.id = ANY (CAST(:job_ids AS bigint[]))
), target AS MATERIALIZED (
    SELECT effect.effect_key
    FROM outbox.effect
    WHERE effect.effect_key IN (
            SELECT judged.effect_key FROM judged WHERE refusal IS NULL AND NOT conflicts
        )
        AND effect.state IN ('rejected', 'given_up')
        AND NOT CAST(:dry_run AS boolean)
    ORDER BY effect.effect_key
    FOR NO KEY UPDATE
), reopened AS (
    UPDATE outbox.effect
    SET state = 'open', open_since = NULL, request = NULL, request_hash = NULL, settled_at = NULL,
        detail = left('retried by a person; before: ' || coalesce(effect.detail, effect.state), 500)
    FROM target
    WHERE effect.effect_key = target.effect_key
), removed AS (
    DELETE FROM outbox.ended_job
    USING judged
    WHERE ended_job.id = judged.id AND judged.refusal IS NULL AND NOT CAST(:dry_run AS boolean)
    RETURNING ended_job.*
), revived AS (
    INSERT INTO outbox.job (
        id, topic, priority, position, effect_key, payload, payload_fingerprint, ordering_key,
        max_attempts, available_at, expires_at, enqueued_at, waiting, claim_version, last_error
    )
    SELECT
        id, topic, priority,
        CASE WHEN ordering_key IS NULL THEN nextval('outbox.job_position') END,
        effect_key, payload, payload_fingerprint, ordering_key, max_attempts, clock_timestamp(),
        CASE WHEN expires_at > clock_timestamp() THEN expires_at END,
        enqueued_at,
        CASE WHEN ordering_key IS NOT NULL THEN 'order' END,
        claim_version,
        left('retried by a person after ' || reason, 500)
    FROM (SELECT * FROM removed ORDER BY id) AS removed
    RETURNING id, topic
)
SELECT judged.id AS job_id, judged.refusal, judged.conflicts, revived.topic
FROM judged
LEFT JOIN revived USING (id)
ORDER BY judged.id
