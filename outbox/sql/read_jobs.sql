-- Live and ended jobs by id. Delivered ones are not among them: find_delivered_jobs knows those.
SELECT
    id, state, topic, effect_key, priority, ordering_key, attempts, enqueued_at, available_at,
    expires_at, claimed_by, lease_until, ended_at, reason, detail
FROM outbox.job_status
WHERE id = ANY (CAST(:job_ids AS bigint[]))
    AND (
        state <> 'done'
        OR reason = 'duplicate'
    )
ORDER BY id
