-- A page of keys in a state other than delivered, found through the live jobs and those that
-- ended dead or cancelled: nearly all of the ledger is delivered and has no index but its key.
-- A held effect always has a job that waits beside it.
WITH candidate AS (
    SELECT effect_key
    FROM outbox.job
    WHERE effect_key > CAST(:after AS text)
        AND (CAST(:state AS text) <> 'held' OR waiting = 'resolve')
    UNION
    SELECT effect_key
    FROM outbox.ended_job
    WHERE CAST(:state AS text) <> 'held'
        AND ended_as IN ('dead', 'cancelled')
        AND effect_key > CAST(:after AS text)
)
SELECT effect.effect_key
FROM candidate
JOIN outbox.effect USING (effect_key)
WHERE effect.state = CAST(:state AS text)
    AND (CAST(:topic AS text) IS NULL OR effect.topic = CAST(:topic AS text))
    AND (CAST(:before AS timestamptz) IS NULL
        OR effect.last_attempt_at < CAST(:before AS timestamptz))
ORDER BY effect.effect_key
LIMIT :limit
