-- The jobs that ask for one effect, with their states. Live and ended jobs have no index on the
-- key, so both are read through: for one key that somebody asks about, under a time limit.
SELECT id, state, attempts, enqueued_at, available_at, ended_at, reason
FROM outbox.job_status
WHERE effect_key = CAST(:effect_key AS text)
ORDER BY id
