-- One INSERT in the caller's transaction. id and position come from one sequence, so that a job
-- that is ready at once costs one nextval. The NOTIFY rides along only while a consumer of the
-- topic says that it sleeps; PostgreSQL folds equal ones of a transaction and drops those of a
-- savepoint that is rolled back.
WITH next AS MATERIALIZED (
    SELECT nextval('outbox.job_position') AS id
)
INSERT INTO outbox.job (
    id, topic, priority, position, effect_key, payload, payload_fingerprint,
    ordering_key, max_attempts, available_at, expires_at, waiting
)
SELECT
    next.id,
    CAST(:topic AS text),
    CAST(:priority AS smallint),
    CASE WHEN CAST(:ordering_key AS text) IS NULL AND NOT later.is_later THEN next.id END,
    CAST(:effect_key AS text),
    CAST(CAST(:payload AS text) AS json),
    CAST(:payload_fingerprint AS bytea),
    CAST(:ordering_key AS text),
    CAST(:max_attempts AS integer),
    CAST(:available_at AS timestamptz),
    CAST(:expires_at AS timestamptz),
    CASE
        WHEN CAST(:ordering_key AS text) IS NOT NULL THEN 'order'
        WHEN later.is_later THEN 'schedule'
    END
FROM next, (
    SELECT coalesce(CAST(:available_at AS timestamptz) > clock_timestamp(), false) AS is_later
) AS later
RETURNING
    job.id,
    CASE
        WHEN CAST(:notify AS boolean)
            AND job.waiting IS DISTINCT FROM 'schedule'
            AND EXISTS (
                SELECT 1 FROM outbox.consumer
                WHERE consumer.sleeps_until > clock_timestamp()
                    AND job.topic = ANY (consumer.topics)
            )
        THEN CAST(pg_notify('outbox_ready', job.topic) AS text)
    END AS notified
