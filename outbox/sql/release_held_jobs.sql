-- Lets jobs that wait beside a held effect back into the queue once the effect is no longer held
-- (a provider's late acceptance moved it to delivered): their next begin reads what to do.
WITH released AS MATERIALIZED (
    SELECT job.id
    FROM outbox.job
    WHERE job.waiting = 'resolve'
        -- A subquery, not a join: one probe for each, whatever the planner believes of the ledger.
        AND (
            SELECT effect.state FROM outbox.effect WHERE effect.effect_key = job.effect_key
        ) <> 'held'
    ORDER BY job.effect_key
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE outbox.job
SET waiting = NULL, position = nextval('outbox.job_position')
WHERE job.id = ANY (ARRAY(SELECT released.id FROM released))
RETURNING job.topic
