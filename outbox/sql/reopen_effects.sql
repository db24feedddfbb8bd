-- Begins a further try of effects that are in the ledger: the claim must hold, and nobody may have
-- begun a try since we read (requests_sent is the ledger's fencing token). The frozen request stays
-- as it is; only where none is left (a person's retry of a refused one), or where nothing is open and
-- another provider is configured by now, is the new one frozen.
WITH wanted AS (
    SELECT job_id, claim_version, requests_seen, request, request_hash, wire_key
    FROM unnest(
        CAST(:job_ids AS bigint[]), CAST(:claim_versions AS bigint[]),
        CAST(:requests_seen AS bigint[]), CAST(:requests AS bytea[]),
        CAST(:request_hashes AS bytea[]), CAST(:wire_keys AS text[])
    ) AS wanted (job_id, claim_version, requests_seen, request, request_hash, wire_key)
    ORDER BY job_id
), claim AS MATERIALIZED (
    SELECT held.id, held.claim_version, held.effect_key, wanted.requests_seen,
        wanted.request, wanted.request_hash, wanted.wire_key
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT job.id, job.claim_version, job.effect_key
        FROM outbox.job
        WHERE job.id = wanted.job_id
            AND job.claim_version = wanted.claim_version
            AND job.claimed_by = :claimed_by
            AND job.lease_until > clock_timestamp()
        FOR NO KEY UPDATE
    ) AS held
), target AS MATERIALIZED (
    SELECT claim.effect_key, claim.id, claim.claim_version, claim.request, claim.request_hash,
        claim.wire_key, locked.freeze_anew
    FROM (SELECT * FROM claim ORDER BY effect_key) AS claim
    CROSS JOIN LATERAL (
        SELECT
            effect.open_since IS NULL
                AND (effect.request IS NULL OR effect.provider <> :provider) AS freeze_anew
        FROM outbox.effect
        WHERE effect.effect_key = claim.effect_key
            AND effect.state = 'open'
            AND effect.requests_sent = claim.requests_seen
        FOR NO KEY UPDATE
    ) AS locked
), reopened AS (
    UPDATE outbox.effect
    SET job_id = target.id,
        claim_version = target.claim_version,
        attempted_by = :claimed_by,
        provider = CASE WHEN effect.open_since IS NULL THEN :provider ELSE effect.provider END,
        account = CASE WHEN effect.open_since IS NULL THEN :account ELSE effect.account END,
        wire_key = CASE WHEN target.freeze_anew THEN target.wire_key ELSE effect.wire_key END,
        request = CASE WHEN target.freeze_anew THEN target.request ELSE effect.request END,
        request_hash = CASE
            WHEN target.freeze_anew THEN target.request_hash ELSE effect.request_hash
        END,
        open_since = coalesce(effect.open_since, moment.now),
        requests_sent = effect.requests_sent + 1,
        last_attempt_at = moment.now
    FROM target
    CROSS JOIN (SELECT clock_timestamp() AS now) AS moment
    WHERE effect.effect_key = target.effect_key
        AND effect.effect_key = ANY (ARRAY(SELECT target.effect_key FROM target))
    RETURNING target.id, effect.request, effect.wire_key, effect.requests_sent
)
SELECT claim.id AS job_id, claim.claim_version, reopened.id IS NOT NULL AS begun,
    reopened.request, reopened.wire_key, reopened.requests_sent
FROM claim
LEFT JOIN reopened ON reopened.id = claim.id
