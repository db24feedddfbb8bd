-- Whether a job of these lanes waits whose lease ran out (see claim_crashed_job). The order keeps
-- the planner on the index: without it, it reads all of the table in the hope of an early match.
SELECT EXISTS (
    SELECT 1
    FROM unnest(
        CAST(:topics AS text[]), CAST(:priorities AS smallint[]), CAST(:ceilings AS bigint[])
    ) AS lane (topic, priority, ceiling)
    CROSS JOIN LATERAL (
        SELECT 1
        FROM outbox.job
        WHERE job.topic = lane.topic
            AND job.priority = lane.priority
            AND job.position <= lane.ceiling
            AND job.lease_until <= clock_timestamp()
        ORDER BY job.position
        LIMIT 1
    ) AS crashed
) AS found
