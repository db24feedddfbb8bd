-- A heartbeat: extends the leases of claims that hold. A job missing from the result is lost.
WITH claim AS MATERIALIZED (
    SELECT job.id
    FROM unnest(CAST(:job_ids AS bigint[]), CAST(:claim_versions AS bigint[]))
        AS mine (job_id, claim_version)
    JOIN outbox.job ON job.id = mine.job_id
    WHERE job.claim_version = mine.claim_version
        AND job.claimed_by = :claimed_by
        AND job.lease_until > clock_timestamp()
    ORDER BY job.id
    FOR NO KEY UPDATE OF job
)
UPDATE outbox.job
SET lease_until = clock_timestamp() + :lease_seconds * interval '1 second'
FROM claim
WHERE job.id = claim.id
RETURNING job.id
