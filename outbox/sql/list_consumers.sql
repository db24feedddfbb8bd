-- Consumers that were seen lately; a hint, since the table does not survive a crash.
SELECT claimed_by, topics, started_at, seen_until
FROM outbox.consumer
WHERE seen_until > clock_timestamp()
ORDER BY claimed_by
