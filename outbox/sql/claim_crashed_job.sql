-- Claims one job whose lease ran out: its last claim ended in a crash, so it is tried alone. Looks
-- where find_crashed_job does.
WITH picked AS MATERIALIZED (
    SELECT crashed.id
    FROM unnest(CAST(:topics AS text[]), CAST(:priorities AS smallint[])) AS lane (topic, priority)
    CROSS JOIN LATERAL (
        SELECT job.id, job.lease_until
        FROM outbox.job
        WHERE job.topic = lane.topic AND job.priority = lane.priority AND job.position IS NOT NULL
        ORDER BY job.position
        LIMIT :limit
    ) AS front
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM outbox.job
        WHERE job.id = front.id AND job.lease_until <= clock_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS crashed
    WHERE front.lease_until <= clock_timestamp()
    LIMIT 1
)
UPDATE outbox.job
SET claim_version = job.claim_version + 1,
    attempts = job.attempts + 1,
    claimed_by = :claimed_by,
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + :lease_seconds * interval '1 second'
WHERE job.id = (SELECT picked.id FROM picked)
RETURNING
    job.id, job.topic, job.priority, job.position, job.effect_key,
    CAST(job.payload AS text) AS payload, job.payload_fingerprint,
    job.claim_version, job.claimed_by, job.attempts, job.max_attempts,
    coalesce(job.expires_at <= clock_timestamp(), false) AS expired
