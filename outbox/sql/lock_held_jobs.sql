-- Locks the jobs that wait beside these effects. A statement of its own, so that the next one sees
-- what was committed while this one waited.
SELECT id, effect_key
FROM outbox.job
WHERE waiting = 'resolve' AND effect_key = ANY (CAST(:effect_keys AS text[]))
ORDER BY id
FOR UPDATE
