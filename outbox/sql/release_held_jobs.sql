-- Lets jobs that wait beside a held effect back into the queue once the effect is no longer held
-- (a provider's late acceptance moved it to delivered): their next begin reads what to do.
WITH released AS MATERIALIZED (
    SELECT job.id
    FROM outbox.job
    JOIN outbox.effect USING (effect_key)
    WHERE job.waiting = 'resolve' AND effect.state <> 'held'
    ORDER BY job.id
    LIMIT :limit
    FOR NO KEY UPDATE OF job SKIP LOCKED
)
UPDATE outbox.job
SET waiting = NULL, position = nextval('outbox.job_position')
FROM released
WHERE job.id = released.id
RETURNING job.topic
