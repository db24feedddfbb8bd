-- Jobs per topic and state for people (the states are those of the view outbox.job_status), with
-- the age of the oldest and whether anybody serves the topic. Written on the tables since the view
-- would read the ended jobs without their index. A topic is served by a consumer that was seen
-- lately, or by one whose claim holds.
WITH counted AS (
    SELECT topic, state, count(*) AS jobs, min(since) AS oldest
    FROM (
        SELECT
            topic,
            CASE
                WHEN waiting = 'resolve' THEN 'held'
                WHEN waiting = 'order' THEN 'blocked'
                WHEN waiting = 'schedule' AND available_at > moment.now THEN 'scheduled'
                WHEN waiting = 'backoff' AND available_at > moment.now THEN 'backing_off'
                WHEN lease_until > moment.now THEN 'running'
                ELSE 'ready'
            END AS state,
            greatest(enqueued_at, available_at) AS since
        FROM outbox.job
        CROSS JOIN (SELECT clock_timestamp() AS now OFFSET 0) AS moment
    ) AS live
    GROUP BY topic, state
    UNION ALL
    SELECT topic, ended_as, count(*), min(ended_at)
    FROM outbox.ended_job
    WHERE ended_as IN ('dead', 'cancelled')
    GROUP BY topic, ended_as
)
SELECT
    counted.topic,
    counted.state,
    counted.jobs,
    CAST(greatest(extract(epoch FROM clock_timestamp() - counted.oldest), 0) AS float8)
        AS oldest_seconds,
    EXISTS (
        SELECT 1 FROM outbox.consumer
        WHERE consumer.seen_until > clock_timestamp() AND counted.topic = ANY (consumer.topics)
    )
    OR EXISTS (
        SELECT 1 FROM counted AS other
        WHERE other.topic = counted.topic AND other.state = 'running'
    ) AS served
FROM counted
ORDER BY counted.topic, counted.state
