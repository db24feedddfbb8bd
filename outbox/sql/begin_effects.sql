-- Writes the intent before the first byte leaves: locks the job rows whose claim holds, then
-- inserts the ledger rows with the frozen requests. A key that is in the ledger already is left as
-- it is (read_effects comes next: an insert that conflicts with a row committed a moment ago can't
-- return it). A job that is missing from the result has lost its lease. The lateral subqueries here
-- and in its siblings make one index probe per job of it, whatever the planner believes of the size
-- of a table that grows and shrinks all the time, and lock in the order of the outer side.
WITH wanted AS (
    SELECT job_id, claim_version, wire_key, request, request_hash
    FROM unnest(
        CAST(:job_ids AS bigint[]), CAST(:claim_versions AS bigint[]), CAST(:wire_keys AS text[]),
        CAST(:requests AS bytea[]), CAST(:request_hashes AS bytea[])
    ) AS wanted (job_id, claim_version, wire_key, request, request_hash)
    ORDER BY job_id
), claim AS MATERIALIZED (
    SELECT
        held.id, held.claim_version, held.effect_key, held.topic, held.payload_fingerprint,
        wanted.wire_key, wanted.request, wanted.request_hash
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT job.id, job.claim_version, job.effect_key, job.topic, job.payload_fingerprint
        FROM outbox.job
        WHERE job.id = wanted.job_id
            AND job.claim_version = wanted.claim_version
            AND job.claimed_by = :claimed_by
            AND job.lease_until > clock_timestamp()
        FOR NO KEY UPDATE
    ) AS held
), begun AS (
    INSERT INTO outbox.effect (
        effect_key, job_id, claim_version, attempted_by, topic, payload_fingerprint, provider,
        account, wire_key, request, request_hash, open_since, requests_sent, first_attempt_at,
        last_attempt_at
    )
    SELECT
        claim.effect_key, claim.id, claim.claim_version, :claimed_by, claim.topic,
        claim.payload_fingerprint, :provider, :account, claim.wire_key, claim.request,
        claim.request_hash, moment.now, 1, moment.now, moment.now
    FROM claim
    CROSS JOIN (SELECT clock_timestamp() AS now) AS moment
    ORDER BY claim.effect_key
    ON CONFLICT (effect_key) DO NOTHING
    RETURNING job_id
)
SELECT claim.id AS job_id, claim.claim_version, claim.id IN (SELECT begun.job_id FROM begun) AS begun
FROM claim
