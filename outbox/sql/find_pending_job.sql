-- Whether --drain still waits for a job of these topics: ready or running, backing off, due, or in
-- line behind one of those. Not for a later time, for a person, or behind what waits for these. (The
-- order keeps the planner on the index of ready jobs, whoever else's they are.)
SELECT EXISTS (
    SELECT 1
    FROM unnest(CAST(:topics AS text[])) AS served (topic)
    CROSS JOIN LATERAL (
        SELECT 1 FROM outbox.job
        WHERE job.topic = served.topic AND job.position IS NOT NULL
        ORDER BY job.priority LIMIT 1
    ) AS first
) OR EXISTS (
    SELECT 1 FROM outbox.job
    WHERE job.topic = ANY (CAST(:topics AS text[]))
        AND job.waiting IN ('schedule', 'backoff')
        AND (job.waiting = 'backoff' OR job.available_at <= clock_timestamp())
) OR EXISTS (
    SELECT 1 FROM outbox.job
    WHERE job.topic = ANY (CAST(:topics AS text[]))
        AND job.waiting = 'order'
        AND coalesce((
            SELECT ahead.waiting FROM outbox.job AS ahead
            WHERE ahead.ordering_key = job.ordering_key AND ahead.waiting IS DISTINCT FROM 'order'
        ), 'nothing') NOT IN ('schedule', 'resolve')
) AS found
