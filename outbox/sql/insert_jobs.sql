-- Many jobs of one topic in the caller's transaction (see insert_job): in one JSON array, which every
-- driver sends as it is; ids and positions in its order.
WITH wanted AS MATERIALIZED (
    SELECT
        nextval('outbox.job_position') AS id,
        job.*,
        coalesce(job.available_at > clock_timestamp(), false) AS is_later
    FROM ROWS FROM (
        json_to_recordset(CAST(CAST(:jobs AS text) AS json)) AS (
            effect_key text, payload text, payload_fingerprint text, available_at timestamptz,
            expires_at timestamptz, priority smallint, ordering_key text, max_attempts integer
        )
    ) WITH ORDINALITY AS job
    ORDER BY job.ordinality
), enqueued AS (
    INSERT INTO outbox.job (
        id, topic, priority, position, effect_key, payload, payload_fingerprint,
        ordering_key, max_attempts, available_at, expires_at, waiting
    )
    SELECT
        id,
        CAST(:topic AS text),
        priority,
        CASE WHEN ordering_key IS NULL AND NOT is_later THEN id END,
        effect_key,
        CAST(payload AS json),
        decode(payload_fingerprint, 'hex'),
        ordering_key,
        max_attempts,
        available_at,
        expires_at,
        CASE WHEN ordering_key IS NOT NULL THEN 'order' WHEN is_later THEN 'schedule' END
    FROM wanted
    RETURNING id, waiting
), woken AS MATERIALIZED (
    SELECT CAST(pg_notify('outbox_ready', CAST(:topic AS text)) AS text) AS notified
    WHERE CAST(:notify AS boolean)
        AND EXISTS (SELECT 1 FROM enqueued WHERE waiting IS DISTINCT FROM 'schedule')
        AND EXISTS (
            SELECT 1 FROM outbox.consumer
            WHERE consumer.sleeps_until > clock_timestamp()
                AND CAST(:topic AS text) = ANY (consumer.topics)
        )
)
SELECT enqueued.id, woken.notified
FROM enqueued
LEFT JOIN woken ON true
ORDER BY enqueued.id
