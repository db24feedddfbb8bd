-- Gives a place in the queue to jobs whose time has come. One with an open effect goes before all
-- new work (a position below zero), since the provider is forgetting its key.
WITH due AS MATERIALIZED (
    SELECT job.id
    FROM outbox.job
    WHERE job.waiting IN ('schedule', 'backoff')
        AND job.available_at <= (SELECT clock_timestamp())
    ORDER BY job.available_at
    LIMIT :limit
    FOR NO KEY UPDATE SKIP LOCKED
), place AS MATERIALIZED (
    -- Here, so that the places follow the times and not the order in which rows are found. To be
    -- looked up, not joined: of few rows, as it believes, the planner compares each with each other.
    SELECT jsonb_object_agg(due.id, nextval('outbox.job_position')) AS of_job FROM due
)
UPDATE outbox.job
SET waiting = NULL,
    position = CAST((SELECT place.of_job -> CAST(job.id AS text) FROM place) AS bigint)
        - CASE WHEN job.retry_first THEN 4611686018427387904 ELSE 0 END
WHERE job.id = ANY (ARRAY(SELECT due.id FROM due))
RETURNING job.topic
