-- Removes this consumer, and those that were last seen long ago.
DELETE FROM outbox.consumer
WHERE claimed_by = :claimed_by OR seen_until < clock_timestamp() - interval '1 hour'
