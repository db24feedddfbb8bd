-- Effects that wait for a person, found through the jobs that wait beside them, and for how long
-- the one that waits longest has been silent: since its last request began.
SELECT
    count(DISTINCT effect.effect_key) AS effects,
    CAST(extract(epoch FROM clock_timestamp() - min(effect.last_attempt_at)) AS float8)
        AS oldest_seconds
FROM outbox.job
JOIN outbox.effect USING (effect_key)
WHERE job.waiting = 'resolve' AND effect.state = 'held'
