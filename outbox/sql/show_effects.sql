-- What the ledger knows of these keys, for people; never the request, which holds addresses.
SELECT
    effect_key, state, topic, provider, account, provider_message_id, requests_sent,
    first_attempt_at, last_attempt_at, settled_at, open_since,
    open_since IS NOT NULL AS may_have_been_sent,
    job_id, attempted_by, detail, wire_key,
    encode(request_hash, 'hex') AS request_sha256
FROM outbox.effect
WHERE effect_key = ANY (CAST(:effect_keys AS text[]))
ORDER BY effect_key
