-- A heartbeat: extends the leases of claims that hold. A job missing from the result is lost.
WITH claim AS MATERIALIZED (
    SELECT held.id
    FROM (
        SELECT job_id, claim_version
        FROM unnest(CAST(:job_ids AS bigint[]), CAST(:claim_versions AS bigint[]))
            AS mine (job_id, claim_version)
        ORDER BY job_id
    ) AS mine
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM outbox.job
        WHERE job.id = mine.job_id
            AND job.claim_version = mine.claim_version
            AND job.claimed_by = :claimed_by
            AND job.lease_until > clock_timestamp()
        FOR NO KEY UPDATE
    ) AS held
)
UPDATE outbox.job
SET lease_until = clock_timestamp() + :lease_seconds * interval '1 second'
WHERE job.id = ANY (ARRAY(SELECT claim.id FROM claim))
RETURNING job.id
