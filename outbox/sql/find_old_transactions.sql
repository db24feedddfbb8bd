-- What holds back vacuum for longest: open transactions of clients, and prepared ones. Of other
-- roles' sessions only a member of pg_read_all_stats sees the ages.
SELECT
    'pid ' || pid || ' ('
        || coalesce(nullif(application_name, ''), 'no application name') || ', '
        || coalesce(state, 'state hidden') || ')' AS who,
    CAST(extract(epoch FROM clock_timestamp() - xact_start) AS float8) AS seconds
FROM pg_stat_activity
WHERE backend_type = 'client backend'
    AND datname = current_database()
    AND pid <> pg_backend_pid()
    AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
    AND xact_start < clock_timestamp() - CAST(:seconds AS float8) * interval '1 second'
UNION ALL
SELECT
    'prepared transaction ' || gid,
    CAST(extract(epoch FROM clock_timestamp() - prepared) AS float8)
FROM pg_prepared_xacts
WHERE database = current_database()
    AND prepared < clock_timestamp() - CAST(:seconds AS float8) * interval '1 second'
ORDER BY seconds DESC
LIMIT 3
