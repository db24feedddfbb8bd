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
    WHERE ended_job.id = ANY (ARRAY(SELECT old.id FROM old))
), target AS MATERIALIZED (
    SELECT locked.effect_key
    FROM (SELECT * FROM old ORDER BY effect_key) AS old
    CROSS JOIN LATERAL (
        SELECT effect.effect_key
        FROM outbox.effect
        WHERE effect.effect_key = old.effect_key
            AND effect.job_id = old.id
            AND effect.state = 'open'
            AND effect.open_since IS NULL
            AND effect.request IS NOT NULL
        FOR NO KEY UPDATE
    ) AS locked
), forgotten AS (
    UPDATE outbox.effect
    SET request = NULL
    WHERE effect.effect_key = ANY (ARRAY(SELECT target.effect_key FROM target))
)
SELECT id, ended_at FROM old ORDER BY ended_at, id
