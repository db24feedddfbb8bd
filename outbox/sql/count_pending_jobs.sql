-- Of the topics served: what --drain still waits for.
SELECT
    count(*) FILTER (WHERE waiting IS NULL AND lease_until IS NULL) AS ready,
    count(*) FILTER (WHERE waiting IS NULL AND lease_until IS NOT NULL) AS running,
    count(*) FILTER (WHERE waiting = 'backoff') AS backing_off,
    count(*) FILTER (WHERE waiting = 'schedule' AND available_at <= clock_timestamp()) AS due,
    count(*) FILTER (
        WHERE waiting = 'order' AND NOT EXISTS (
            SELECT 1 FROM outbox.job AS ahead
            WHERE ahead.ordering_key = job.ordering_key AND ahead.waiting IN ('schedule', 'resolve')
        )
    ) AS in_line
FROM outbox.job
WHERE topic = ANY (CAST(:topics AS text[]))
