-- How well vacuum keeps up with the queue table.
SELECT
    n_dead_tup AS dead,
    n_live_tup AS live,
    pg_total_relation_size(relid) / 1048576 AS megabytes,
    current_setting('autovacuum') = 'on' AS autovacuum
FROM pg_stat_user_tables
WHERE relid = CAST('outbox.job' AS regclass)
