-- Claims up to :limit ready jobs that nobody has claimed, lane by lane in the order given, each
-- from its floor. A job whose last claim ended in a crash still has its lease: claim_crashed_job
-- takes those, alone. The caller runs it as one READ COMMITTED transaction. (An array is looked up
-- by index under any plan; a join may read all of the table.)
WITH lane AS (
    SELECT topic, priority, floor
    FROM unnest(
        CAST(:topics AS text[]), CAST(:priorities AS smallint[]), CAST(:floors AS bigint[])
    ) AS lane (topic, priority, floor)
), picked AS MATERIALIZED (
    SELECT ready.id
    FROM lane
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM outbox.job
        WHERE job.topic = lane.topic
            AND job.priority = lane.priority
            AND job.position >= lane.floor
            AND job.lease_until IS NULL
        ORDER BY job.position
        LIMIT :limit
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS ready
    LIMIT :limit
)
UPDATE outbox.job
SET claim_version = job.claim_version + 1,
    attempts = job.attempts + 1,
    claimed_by = :claimed_by,
    claimed_at = clock_timestamp(),
    lease_until = clock_timestamp() + :lease_seconds * interval '1 second'
WHERE job.id = ANY (ARRAY(SELECT picked.id FROM picked))
RETURNING
    job.id, job.topic, job.priority, job.position, job.effect_key,
    CAST(job.payload AS text) AS payload, job.payload_fingerprint,
    job.claim_version, job.claimed_by, job.attempts, job.max_attempts,
    coalesce(job.expires_at <= clock_timestamp(), false) AS expired
