-- Cancels live jobs (locked by lock_jobs) for which no request can be under way or have arrived,
-- and says of the others why it is too late. While we hold a job's lock nobody can claim it, begin
-- its effect or settle it, so what the ledger says of it here stays true.
WITH judged AS MATERIALIZED (
    SELECT
        job.id,
        CASE
            WHEN job.lease_until > clock_timestamp() THEN 'running'
            WHEN effect.state IN ('delivered', 'held') THEN effect.state
            WHEN effect.open_since IS NOT NULL THEN 'may_have_been_sent'
        END AS too_late
    FROM outbox.job
    LEFT JOIN outbox.effect
        ON effect.effect_key = job.effect_key
        AND effect.topic = job.topic
        AND effect.payload_fingerprint = job.payload_fingerprint
    WHERE job.id = ANY (CAST(:job_ids AS bigint[]))
), removed AS (
    DELETE FROM outbox.job
    USING judged
    WHERE job.id = judged.id AND judged.too_late IS NULL
    RETURNING job.*
), ended AS (
    INSERT INTO outbox.ended_job (
        id, topic, priority, effect_key, payload, payload_fingerprint, ordering_key, max_attempts,
        expires_at, enqueued_at, attempts, claim_version, ended_as, reason
    )
    SELECT
        id, topic, priority, effect_key, payload, payload_fingerprint, ordering_key, max_attempts,
        expires_at, enqueued_at, attempts, claim_version, 'cancelled', 'by_person'
    FROM removed
)
SELECT judged.id AS job_id, judged.too_late, removed.topic
FROM judged
LEFT JOIN removed USING (id)
ORDER BY judged.id
