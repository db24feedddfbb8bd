-- Locks live jobs. A statement of its own, so that the next one sees what was committed while this
-- one waited: above all the ledger row of a try that was begun and settled meanwhile.
SELECT id
FROM outbox.job
WHERE id = ANY (CAST(:job_ids AS bigint[]))
ORDER BY id
FOR UPDATE
