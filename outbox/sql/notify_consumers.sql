-- A wake-up, as a hint only, once per topic.
SELECT CAST(pg_notify('outbox_ready', topic) AS text) AS notified
FROM unnest(CAST(:topics AS text[])) AS woken (topic)
