-- What a job was asked to do; NULL once retention has passed.
SELECT CAST(payload AS text) AS payload FROM outbox.job WHERE id = :job_id
UNION ALL
SELECT CAST(payload AS text) FROM outbox.ended_job WHERE id = :job_id
