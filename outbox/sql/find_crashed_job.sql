-- Whether a job waits whose lease ran out, among the first :limit live ones of each of these lanes.
-- What has been claimed is found at the front; whatever waits before it is due before it, too. The
-- order keeps the planner on the index.
SELECT EXISTS (
    SELECT 1
    FROM unnest(CAST(:topics AS text[]), CAST(:priorities AS smallint[])) AS lane (topic, priority)
    CROSS JOIN LATERAL (
        SELECT job.lease_until
        FROM outbox.job
        WHERE job.topic = lane.topic AND job.priority = lane.priority AND job.position IS NOT NULL
        ORDER BY job.position
        LIMIT :limit
    ) AS front
    WHERE front.lease_until <= clock_timestamp()
) AS found
