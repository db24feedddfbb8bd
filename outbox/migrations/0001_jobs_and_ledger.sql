-- The queue, the ledger of effects (the dedupe table), and the view for people.
-- Words as in docs/promises.md: a job asks for an effect; a claim is the right to work on a job;
-- the ledger remembers what became of each effect, keyed by the business effect.

CREATE SEQUENCE outbox.job_position;

-- Only live jobs. A delivered job is deleted by the statement that settles it: the ledger row is
-- the record. The columns that a claim writes (claim_version .. lease_until) are in no index, so
-- that a claim is a heap-only update; fillfactor leaves room for that one version.
CREATE TABLE outbox.job (
    id bigint PRIMARY KEY,
    topic text COLLATE "C" NOT NULL,
    priority smallint NOT NULL DEFAULT 0,
    position bigint,
    effect_key text COLLATE "C" NOT NULL,
    payload json NOT NULL,
    payload_fingerprint bytea NOT NULL,
    ordering_key text COLLATE "C",
    max_attempts integer,
    available_at timestamptz,
    expires_at timestamptz,
    enqueued_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    waiting text COLLATE "C",
    retry_first boolean NOT NULL DEFAULT false,
    attempts integer NOT NULL DEFAULT 0,
    claim_version bigint NOT NULL DEFAULT 0,
    claimed_by text COLLATE "C",
    claimed_at timestamptz,
    lease_until timestamptz,
    last_error text,
    -- Every claim checks these again, and a counted repetition ({1,200}) costs 15 us a time.
    CONSTRAINT job_topic_shape CHECK (
        topic ~ '^[A-Za-z0-9][A-Za-z0-9._-]*$' AND length(topic) <= 100
    ),
    CONSTRAINT job_effect_key_shape CHECK (
        effect_key ~ '^[A-Za-z0-9._-]+$' AND length(effect_key) <= 200
    ),
    CONSTRAINT job_fingerprint_is_sha256 CHECK (octet_length(payload_fingerprint) = 32),
    CONSTRAINT job_ordering_key_length CHECK (length(ordering_key) BETWEEN 1 AND 200),
    CONSTRAINT job_max_attempts_positive CHECK (max_attempts >= 1),
    CONSTRAINT job_waiting_known CHECK (waiting IN ('schedule', 'backoff', 'order', 'resolve')),
    CONSTRAINT job_has_position_unless_waiting CHECK ((position IS NULL) = (waiting IS NOT NULL)),
    CONSTRAINT job_waits_for_a_time CHECK (
        waiting IS NULL OR waiting NOT IN ('schedule', 'backoff') OR available_at IS NOT NULL
    ),
    CONSTRAINT job_claim_is_whole CHECK (
        (lease_until IS NULL) = (claimed_by IS NULL) AND (lease_until IS NULL) = (claimed_at IS NULL)
    )
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.1,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false
);

COMMENT ON TABLE outbox.job IS 'Live jobs: do this after commit. Delivered ones are deleted, the others end in outbox.ended_job.';
COMMENT ON COLUMN outbox.job.position IS 'Place in the queue of its topic and priority, from outbox.job_position when the job became ready; NULL while it waits.';
COMMENT ON COLUMN outbox.job.waiting IS 'What a job without position waits for: schedule, backoff, order (the head of its ordering key), resolve (a held effect).';
COMMENT ON COLUMN outbox.job.claim_version IS 'Grows with every claim and never goes back: the fencing token of claims.';
COMMENT ON COLUMN outbox.job.retry_first IS 'Its effect is open, and the provider is forgetting the key: goes before all new work when its time comes.';

-- Per topic and priority, so that a full scan never steps over the ready jobs of other topics.
CREATE INDEX job_ready ON outbox.job (topic, priority, position) WHERE position IS NOT NULL;
CREATE INDEX job_due ON outbox.job (available_at) WHERE waiting IN ('schedule', 'backoff');
CREATE INDEX job_blocked ON outbox.job (ordering_key, id) WHERE waiting = 'order';
CREATE INDEX job_held ON outbox.job (effect_key) WHERE waiting = 'resolve';
-- Never two jobs of one ordering key outside the line, whatever two releasing consumers do.
CREATE UNIQUE INDEX job_ordering_head ON outbox.job (ordering_key)
    WHERE ordering_key IS NOT NULL AND waiting IS DISTINCT FROM 'order';

-- Jobs that ended without delivering themselves, with their reasons; replayable.
CREATE TABLE outbox.ended_job (
    id bigint PRIMARY KEY,
    topic text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    effect_key text COLLATE "C" NOT NULL,
    payload json,
    payload_fingerprint bytea NOT NULL,
    ordering_key text COLLATE "C",
    max_attempts integer,
    expires_at timestamptz,
    enqueued_at timestamptz NOT NULL,
    attempts integer NOT NULL,
    claim_version bigint NOT NULL,
    ended_as text COLLATE "C" NOT NULL,
    reason text NOT NULL,
    detail text,
    ended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT ended_job_known CHECK (ended_as IN ('duplicate', 'dead', 'cancelled'))
);
CREATE INDEX ended_job_by_end ON outbox.ended_job (ended_as, ended_at, id);

COMMENT ON TABLE outbox.ended_job IS 'Jobs that ended as duplicate, dead or cancelled, with the reason. payload is NULL once retention has passed.';

-- The ledger is the dedupe table: one row per effect for ever (keys stay as tombstones).
-- No index but the key, so that settling is a heap-only update.
CREATE TABLE outbox.effect (
    effect_key text COLLATE "C" PRIMARY KEY,
    job_id bigint NOT NULL,
    claim_version bigint NOT NULL,
    attempted_by text NOT NULL,
    topic text COLLATE "C" NOT NULL,
    payload_fingerprint bytea NOT NULL,
    provider text NOT NULL,
    account text NOT NULL,
    wire_key text NOT NULL,
    state text COLLATE "C" NOT NULL DEFAULT 'open',
    request bytea,
    request_hash bytea,
    open_since timestamptz,
    requests_sent bigint NOT NULL,
    first_attempt_at timestamptz NOT NULL,
    last_attempt_at timestamptz NOT NULL,
    settled_at timestamptz,
    provider_message_id text,
    detail text,
    CONSTRAINT effect_state_known CHECK (state IN ('open', 'delivered', 'rejected', 'held', 'given_up')),
    CONSTRAINT effect_settled_has_time CHECK (
        state IN ('open', 'held') OR (settled_at IS NOT NULL AND request IS NULL)
    ),
    CONSTRAINT effect_held_may_have_been_sent CHECK (state <> 'held' OR open_since IS NOT NULL)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false
);
-- Request bytes are not compressible enough to pay for it: 4 KB as EXTERNAL went 2.7 times faster.
ALTER TABLE outbox.effect ALTER COLUMN request SET STORAGE EXTERNAL;

COMMENT ON TABLE outbox.effect IS 'The ledger of effects, which is the dedupe table: what was asked of the world under each key, and what became of it.';
COMMENT ON COLUMN outbox.effect.open_since IS 'Start of the earliest request that may have been accepted without our knowing; NULL when no try is open.';
COMMENT ON COLUMN outbox.effect.requests_sent IS 'Requests begun: an upper bound of those that arrived, and the fencing token of the ledger.';
COMMENT ON COLUMN outbox.effect.request IS 'The frozen request, byte for byte; dropped when the effect is settled, its hash stays.';

-- Some pages that stay (vacuum_truncate): a queue at rest is empty, and of a table without pages the
-- planner believes that reading it all is cheapest. A consumer would keep such a plan until the next
-- ANALYZE, and read the whole backlog of a burst for each claim.
INSERT INTO outbox.job (id, topic, position, effect_key, payload, payload_fingerprint)
SELECT -n, 'page', -n, 'page', to_json(repeat('x', 1900)), sha256('') FROM generate_series(1, 128) AS n;
DELETE FROM outbox.job;
INSERT INTO outbox.effect (
    effect_key, job_id, claim_version, attempted_by, topic, payload_fingerprint, provider, account,
    wire_key, requests_sent, first_attempt_at, last_attempt_at
)
SELECT n, -n, 0, repeat('x', 1900), 'page', sha256(''), '', '', '', 0, now(), now()
FROM generate_series(1, 192) AS n;
DELETE FROM outbox.effect;

-- Who is there, and who sleeps. Only hints hang on it (wake-ups, the count of unserved jobs),
-- never a claim or a recovery; so it may be lost in a crash.
CREATE UNLOGGED TABLE outbox.consumer (
    claimed_by text COLLATE "C" PRIMARY KEY,
    topics text[] NOT NULL,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_until timestamptz NOT NULL,
    sleeps_until timestamptz
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);

COMMENT ON TABLE outbox.consumer IS 'Consumers that were seen lately and the topics that they serve; sleeps_until lets an enqueue skip the NOTIFY when nobody sleeps.';

-- States for people. pending / running / done / failed of the usual pattern are
-- ready + scheduled + backing_off + blocked / running / done / dead + held.
CREATE VIEW outbox.job_status AS
SELECT
    job.id,
    CASE
        WHEN job.waiting = 'resolve' THEN 'held'
        WHEN job.waiting = 'order' THEN 'blocked'
        WHEN job.waiting = 'schedule' AND job.available_at > clock_timestamp() THEN 'scheduled'
        WHEN job.waiting = 'backoff' AND job.available_at > clock_timestamp() THEN 'backing_off'
        WHEN job.lease_until > clock_timestamp() THEN 'running'
        ELSE 'ready'
    END AS state,
    job.topic,
    job.effect_key,
    job.priority,
    job.ordering_key,
    job.attempts,
    job.enqueued_at,
    job.available_at,
    job.expires_at,
    job.claimed_by,
    job.lease_until,
    NULL::timestamptz AS ended_at,
    job.last_error AS reason,
    NULL::text AS detail
FROM outbox.job
UNION ALL
SELECT
    ended.id,
    CASE ended.ended_as WHEN 'duplicate' THEN 'done' ELSE ended.ended_as END,
    ended.topic,
    ended.effect_key,
    ended.priority,
    ended.ordering_key,
    ended.attempts,
    ended.enqueued_at,
    NULL,
    ended.expires_at,
    NULL,
    NULL,
    ended.ended_at,
    CASE ended.ended_as WHEN 'duplicate' THEN 'duplicate' ELSE ended.reason END,
    ended.detail
FROM outbox.ended_job AS ended
UNION ALL
SELECT
    effect.job_id,
    'done',
    effect.topic,
    effect.effect_key,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    NULL,
    effect.attempted_by,
    NULL,
    effect.settled_at,
    'delivered',
    effect.detail
FROM outbox.effect
WHERE effect.state = 'delivered'
    AND NOT EXISTS (SELECT 1 FROM outbox.job WHERE job.id = effect.job_id)
    AND NOT EXISTS (SELECT 1 FROM outbox.ended_job WHERE ended_job.id = effect.job_id);

COMMENT ON VIEW outbox.job_status IS 'Every job and its state for people: ready, scheduled, backing_off, running, blocked, held, dead, cancelled, done.';
