-- Ended jobs whose payload retention would clear.
SELECT count(*) AS jobs
FROM outbox.ended_job
WHERE payload IS NOT NULL
    AND ended_at < clock_timestamp() - CAST(:days AS float8) * interval '24 hours'
