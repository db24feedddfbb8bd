-- Clears the payloads of a batch of jobs that ended so long ago, along their index from where the
-- last batch stopped. Rows and keys stay. Such a job can't be retried any more; so a request that
-- it left frozen in the ledger, with nothing open, goes too (it holds the same addresses).
WITH old AS MATERIALIZED (
    SELECT id, effect_key, ended_at
    FROM outbox.ended_job
    WHERE ended_as = CAST(:ended_as AS text)
        AND (ended_at, id) > (CAST(:after_ended_at AS timestamptz), CAST(:after_id AS bigint))
        AND ended_at < clock_timestamp() - CAST(:days AS float8) * interval '24 hours'
        AND payload IS NOT NULL
    ORDER BY ended_at, id
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
), cleared AS (
    UPDATE outbox.ended_job
    SET payload = NULL
    FROM old
    WHERE ended_job.id = old.id
), target AS MATERIALIZED (
    SELECT effect.effect_key
    FROM outbox.effect
    JOIN old ON old.effect_key = effect.effect_key AND old.id = effect.job_id
    WHERE effect.state = 'open' AND effect.open_since IS NULL AND effect.request IS NOT NULL
    ORDER BY effect.effect_key
    FOR NO KEY UPDATE OF effect
), forgotten AS (
    UPDATE outbox.effect
    SET request = NULL
    FROM target
    WHERE effect.effect_key = target.effect_key
)
SELECT id, ended_at FROM old ORDER BY ended_at, id
