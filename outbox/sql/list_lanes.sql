-- The (topic, priority) pairs in use among the topics served: a loose scan of the ready index,
-- one probe per pair instead of one per job.
WITH RECURSIVE pair AS (
    SELECT served.topic, first.priority
    FROM unnest(CAST(:topics AS text[])) AS served (topic)
    CROSS JOIN LATERAL (
        SELECT job.priority FROM outbox.job
        WHERE job.topic = served.topic AND job.position IS NOT NULL
        ORDER BY job.priority LIMIT 1
    ) AS first
    UNION ALL
    SELECT pair.topic, further.priority
    FROM pair
    CROSS JOIN LATERAL (
        SELECT job.priority FROM outbox.job
        WHERE job.topic = pair.topic AND job.position IS NOT NULL AND job.priority > pair.priority
        ORDER BY job.priority LIMIT 1
    ) AS further
)
SELECT topic, priority FROM pair
