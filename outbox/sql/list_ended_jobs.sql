-- The ids of ended jobs that a bulk retry asks for, oldest end first.
SELECT id
FROM outbox.ended_job
WHERE ended_as = CAST(:ended_as AS text)
    AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))
    AND (CAST(:reason AS text) IS NULL OR reason = CAST(:reason AS text))
    AND (CAST(:before AS timestamptz) IS NULL OR ended_at < CAST(:before AS timestamptz))
ORDER BY ended_at, id
LIMIT :limit
