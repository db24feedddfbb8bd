-- A page of the ledger's keys, along its primary key.
SELECT effect_key
FROM outbox.effect
WHERE effect_key > CAST(:after AS text)
    AND (CAST(:state AS text) IS NULL OR state = CAST(:state AS text))
    AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))
    AND (CAST(:before AS timestamptz) IS NULL OR last_attempt_at < CAST(:before AS timestamptz))
ORDER BY effect_key
LIMIT :limit
