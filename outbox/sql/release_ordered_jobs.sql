-- Lets the head of each ordering key into the queue when no job of that key is there. The lock
-- makes releasing consumers take turns; the unique index job_ordering_head would stop a second
-- head anyway, but by failing the statement.
WITH turn AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.release_ordered_jobs', 0)) AS mine
), head AS MATERIALIZED (
    SELECT DISTINCT ON (blocked.ordering_key) blocked.id
    FROM turn
    CROSS JOIN outbox.job AS blocked
    WHERE turn.mine
        AND blocked.waiting = 'order'
        AND NOT EXISTS (
            SELECT 1 FROM outbox.job AS ahead
            WHERE ahead.ordering_key = blocked.ordering_key
                AND ahead.waiting IS DISTINCT FROM 'order'
        )
    ORDER BY blocked.ordering_key, blocked.id
    LIMIT :limit
)
UPDATE outbox.job
SET waiting = CASE WHEN job.available_at > clock_timestamp() THEN 'schedule' END,
    position = CASE
        WHEN job.available_at > clock_timestamp() THEN NULL
        ELSE nextval('outbox.job_position')
    END
FROM head
WHERE job.id = head.id AND job.waiting = 'order'
RETURNING job.topic
