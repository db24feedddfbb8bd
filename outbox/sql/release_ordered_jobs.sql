-- Lets the head of each ordering key into the queue when no job of that key is there. The lock
-- makes releasing consumers take turns; the unique index job_ordering_head would stop a second
-- head anyway, but by failing the statement.
WITH RECURSIVE turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.release_ordered_jobs', 0)) AS mine
), line AS (
    -- A loose scan: one probe for each ordering key that has somebody waiting, not for each job.
    SELECT (
        SELECT job.ordering_key FROM outbox.job
        WHERE job.waiting = 'order'
        ORDER BY job.ordering_key LIMIT 1
    ) AS ordering_key
    UNION ALL
    SELECT (
        SELECT job.ordering_key FROM outbox.job
        WHERE job.waiting = 'order' AND job.ordering_key > line.ordering_key
        ORDER BY job.ordering_key LIMIT 1
    )
    FROM line
    WHERE line.ordering_key IS NOT NULL
), head AS MATERIALIZED (
    SELECT first.id
    FROM turn
    CROSS JOIN line
    CROSS JOIN LATERAL (
        SELECT job.id FROM outbox.job
        WHERE job.waiting = 'order' AND job.ordering_key = line.ordering_key
        ORDER BY job.id LIMIT 1
    ) AS first
    WHERE turn.mine
        AND (
            SELECT true FROM outbox.job AS ahead
            WHERE ahead.ordering_key = line.ordering_key
                AND ahead.waiting IS DISTINCT FROM 'order'
        ) IS NULL
    LIMIT :limit
)
UPDATE outbox.job
SET waiting = CASE WHEN job.available_at > clock_timestamp() THEN 'schedule' END,
    position = CASE
        WHEN job.available_at > clock_timestamp() THEN NULL
        ELSE nextval('outbox.job_position')
    END
WHERE job.id = ANY (ARRAY(SELECT head.id FROM head)) AND job.waiting = 'order'
RETURNING job.topic
