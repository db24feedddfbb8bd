-- What the ledger says about the effects of these jobs, with the age of an open try by the
-- database's clock, and whether another job's claim is at work on it right now.
SELECT
    wanted.job_id,
    effect.effect_key,
    effect.job_id AS attempt_job_id,
    effect.claim_version AS attempt_claim_version,
    effect.topic,
    effect.payload_fingerprint,
    effect.provider,
    effect.account,
    effect.wire_key,
    effect.state,
    effect.request,
    effect.requests_sent,
    effect.detail,
    CAST(extract(epoch FROM clock_timestamp() - effect.open_since) AS float8) AS open_seconds,
    coalesce(effect.open_since = effect.last_attempt_at, false) AS sole_open,
    EXISTS (
        SELECT 1 FROM outbox.job AS other
        WHERE other.id = effect.job_id
            AND other.id <> wanted.job_id
            AND other.claim_version = effect.claim_version
            AND other.lease_until > clock_timestamp()
    ) AS at_work_elsewhere
FROM unnest(CAST(:job_ids AS bigint[]), CAST(:effect_keys AS text[])) AS wanted (job_id, effect_key)
CROSS JOIN LATERAL (
    -- With a limit, which keeps the planner from making a join of it.
    SELECT * FROM outbox.effect WHERE effect.effect_key = wanted.effect_key LIMIT 1
) AS effect
