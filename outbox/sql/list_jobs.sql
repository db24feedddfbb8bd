-- A page of jobs by id. Without 'done' among the states the planner leaves the ledger out of the
-- view and walks two primary keys; with it, all of the ledger is read and sorted.
SELECT
    id, state, topic, effect_key, priority, ordering_key, attempts, enqueued_at, available_at,
    expires_at, claimed_by, lease_until, ended_at, reason, detail
FROM outbox.job_status
WHERE state = ANY (CAST(:states AS text[]))
    AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))
    AND id > :after
ORDER BY id
LIMIT :limit
