-- Claims one job whose lease ran out: its last claim ended in a crash, so it is tried alone.
-- Each lane is looked through up to its ceiling, the highest position that anyone can have claimed
-- as far as this consumer knows.
WITH lane AS (
    SELECT topic, priority, ceiling
    FROM unnest(
        CAST(:topics AS text[]), CAST(:priorities AS smallint[]), CAST(:ceilings AS bigint[])
    ) AS lane (topic, priority, ceiling)
), picked AS MATERIALIZED (
    SELECT crashed.id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM outbox.job
        WHERE job.topic = lane.topic
            AND job.priority = lane.priority
            AND job.position <= lane.ceiling
            AND job.lease_until <= clock_timestamp()
        ORDER BY job.position
        LIMIT 1
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS crashed
    LIMIT 1
)
UPDATE outbox.job
SET claim_version = job.claim_version + 1,
    attempts = job.attempts + 1,
    claimed_by = :claimed_by,
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + :lease_seconds * interval '1 second'
FROM picked
WHERE job.id = picked.id
RETURNING
    job.id, job.topic, job.priority, job.position, job.effect_key,
    CAST(job.payload AS text) AS payload, job.payload_fingerprint,
    job.claim_version, job.claimed_by, job.attempts, job.max_attempts,
    coalesce(job.expires_at <= clock_timestamp(), false) AS expired
