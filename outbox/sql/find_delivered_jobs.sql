-- Which of these jobs delivered an effect themselves. Reads the whole ledger, which has no index
-- but its key; so only asked for a few ids that are found nowhere else.
SELECT DISTINCT ON (job_id) job_id, effect_key
FROM outbox.effect
WHERE job_id = ANY (CAST(:job_ids AS bigint[])) AND state = 'delivered'
ORDER BY job_id, effect_key
