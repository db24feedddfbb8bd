-- Locks ended jobs. A statement of its own, so that the next one sees what was committed while
-- this one waited.
SELECT id
FROM outbox.ended_job
WHERE id = ANY (CAST(:job_ids AS bigint[]))
ORDER BY id
FOR UPDATE
