-- Which of these privileges the current role lacks on tables, views and sequences of ours.
SELECT wanted.name, wanted.privilege
FROM unnest(CAST(:relations AS text[]), CAST(:privileges AS text[])) AS wanted (name, privilege)
WHERE CASE wanted.privilege
    WHEN 'USAGE' THEN NOT has_sequence_privilege('outbox.' || wanted.name, wanted.privilege)
    ELSE NOT has_table_privilege('outbox.' || wanted.name, wanted.privilege)
END
