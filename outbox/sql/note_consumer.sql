-- Says that this consumer is there, and until when it sleeps (NULL: it is awake).
INSERT INTO outbox.consumer (claimed_by, topics, seen_until, sleeps_until)
VALUES (
    :claimed_by,
    CAST(:topics AS text[]),
    clock_timestamp() + :seen_seconds * interval '1 second',
    clock_timestamp() + CAST(:sleep_seconds AS float8) * interval '1 second'
)
ON CONFLICT (claimed_by) DO UPDATE
SET topics = excluded.topics,
    seen_until = excluded.seen_until,
    sleeps_until = excluded.sleeps_until
