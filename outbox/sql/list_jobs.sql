-- A page of jobs by id, each as the view outbox.job_status shows it. Written on the tables, each
-- walked along its key: the view asks the clock for every row, which keeps the planner from
-- stopping at the limit. Only with 'done' among the states the whole ledger is read.
SELECT *
FROM (
    (
        SELECT
            job.id, current.state, job.topic, job.effect_key, job.priority, job.ordering_key,
            job.attempts, job.enqueued_at, job.available_at, job.expires_at, job.claimed_by,
            job.lease_until, CAST(NULL AS timestamptz) AS ended_at, job.last_error AS reason,
            CAST(NULL AS text) AS detail
        FROM (SELECT clock_timestamp() AS now OFFSET 0) AS moment
        CROSS JOIN outbox.job
        CROSS JOIN LATERAL (
            SELECT CASE
                WHEN job.waiting = 'resolve' THEN 'held'
                WHEN job.waiting = 'order' THEN 'blocked'
                WHEN job.waiting = 'schedule' AND job.available_at > moment.now THEN 'scheduled'
                WHEN job.waiting = 'backoff' AND job.available_at > moment.now THEN 'backing_off'
                WHEN job.lease_until > moment.now THEN 'running'
                ELSE 'ready'
            END AS state
        ) AS current
        WHERE job.id > :after
            AND (CAST(:topic AS text) IS NULL OR job.topic = CAST(:topic AS text))
            AND current.state = ANY (CAST(:states AS text[]))
        ORDER BY job.id
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT
            id, current.state, topic, effect_key, priority, ordering_key, attempts, enqueued_at,
            NULL, expires_at, NULL, NULL, ended_at,
            CASE ended_as WHEN 'duplicate' THEN 'duplicate' ELSE reason END, detail
        FROM outbox.ended_job
        CROSS JOIN LATERAL (
            SELECT CASE ended_as WHEN 'duplicate' THEN 'done' ELSE ended_as END AS state
        ) AS current
        WHERE id > :after
            AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))
            AND current.state = ANY (CAST(:states AS text[]))
        ORDER BY id
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT
            job_id, 'done', topic, effect_key, NULL, NULL, NULL, NULL, NULL, NULL, attempted_by,
            NULL, settled_at, 'delivered', detail
        FROM (
            SELECT job_id, topic, effect_key, attempted_by, settled_at, detail
            FROM outbox.effect
            WHERE 'done' = ANY (CAST(:states AS text[]))
                AND state = 'delivered'
                AND job_id > :after
                AND (CAST(:topic AS text) IS NULL OR topic = CAST(:topic AS text))
            ORDER BY job_id
            -- Few of them still have a row of their own (an acceptance that came late); leaving
            -- those out before the limit would mean to look for every delivered job.
            LIMIT :limit + 1000
        ) AS delivered
        WHERE NOT EXISTS (SELECT 1 FROM outbox.job WHERE job.id = delivered.job_id)
            AND NOT EXISTS (SELECT 1 FROM outbox.ended_job WHERE ended_job.id = delivered.job_id)
        ORDER BY job_id
        LIMIT :limit
    )
) AS page
ORDER BY id
LIMIT :limit
