-- A page of keys in a state other than delivered. Nearly all of the ledger is delivered and has no
-- index but its key; so they are found through jobs that were claimed: live ones, and those that
-- ended dead or cancelled. A held effect always has a job that waits beside it.
WITH candidate AS (
    SELECT effect_key
    FROM outbox.job
    WHERE claim_version > 0
        AND effect_key > CAST(:after AS text)
        AND (CAST(:state AS text) <> 'held' OR waiting = 'resolve')
    UNION
    SELECT effect_key
    FROM outbox.ended_job
    WHERE CAST(:state AS text) <> 'held'
        AND ended_as IN ('dead', 'cancelled')
        AND claim_version > 0
        AND effect_key > CAST(:after AS text)
)
SELECT found.effect_key
FROM candidate
CROSS JOIN LATERAL (
    SELECT effect.effect_key
    FROM outbox.effect
    WHERE effect.effect_key = candidate.effect_key
        AND effect.state = CAST(:state AS text)
        AND (CAST(:topic AS text) IS NULL OR effect.topic = CAST(:topic AS text))
        AND (CAST(:before AS timestamptz) IS NULL
            OR effect.last_attempt_at < CAST(:before AS timestamptz))
    OFFSET 0
) AS found
ORDER BY candidate.effect_key
LIMIT :limit
