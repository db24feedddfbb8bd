"""Guards of the ledger: the intent before the call, and what a further try must find."""

# ruff: noqa: E501 -- a table of texts

from __future__ import annotations

from tests.mutants.guards.claims import BY_INDEX, MATERIALIZED, ONE_INSTANT
from tests.mutants.mutant import Edit, of, of_sql, same

EFFECTS = [
    *of_sql("begin_effects", {
        "any order of jobs": Edit("ORDER BY job_id", ""),
        "every version": Edit("AND job.claim_version = wanted.claim_version", ""),
        "newer versions too": Edit(
            "job.claim_version = wanted.claim_version", "job.claim_version >= wanted.claim_version"
        ),
        "anybody's": Edit("job.claimed_by = :claimed_by", ":claimed_by IS NOT NULL"),
        "lapsed ones too": Edit("AND job.lease_until > clock_timestamp()", ""),
        "lapsed in its transaction too": Edit(
            "job.lease_until > clock_timestamp()", "job.lease_until > now()"
        ),
        "lapsed this moment too": same(
            ONE_INSTANT, "lease_until > clock_timestamp()", "lease_until >= clock_timestamp()"
        ),
        "no lock": Edit("FOR NO KEY UPDATE", ""),
        "stronger lock": Edit("FOR NO KEY UPDATE", "FOR UPDATE"),
        "passes over what is locked": Edit("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED"),
        "not materialized": same(MATERIALIZED, "claim AS MATERIALIZED", "claim AS"),
        "any order of keys": Edit("ORDER BY claim.effect_key", ""),
        "a known key is an error": Edit("ON CONFLICT (effect_key) DO NOTHING", ""),
        "a known key is written over": Edit(
            "ON CONFLICT (effect_key) DO NOTHING",
            "ON CONFLICT (effect_key) DO UPDATE SET state = 'open', settled_at = NULL,"
            " request = excluded.request, job_id = excluded.job_id, open_since = excluded.open_since",
        ),
        "a known key counts as begun": Edit(
            "claim.id IN (SELECT begun.job_id FROM begun) AS begun", "true AS begun"
        ),
        "open since its transaction's start": Edit(
            "(SELECT clock_timestamp() AS now)", "(SELECT now() AS now)"
        ),
        "not counted": Edit("moment.now, 1, moment.now", "moment.now, 0, moment.now"),
        "not open": Edit(
            "claim.request_hash, moment.now, 1", "claim.request_hash, CAST(NULL AS timestamptz), 1"
        ),
    }),
    *of_sql("read_effects", {
        "another key's row": Edit("effect.effect_key = wanted.effect_key", "true"),
        "looks through the ledger": same("""
            There is one row of a key at most. The limit keeps the planner from making a join of it,
            which may read all of the ledger; test_cost.py watches the way.""",
            "LIMIT 1 ) AS effect", ") AS effect"),
        "its own claim is another's": Edit("AND other.id <> wanted.job_id", ""),
        "a later claim of the other too": Edit(
            "AND other.claim_version = effect.claim_version", ""
        ),
        "a lapsed claim is at work": Edit("AND other.lease_until > clock_timestamp()", ""),
        "nobody is at work": Edit("other.lease_until > clock_timestamp()", "false"),
        "at work by the transaction's start": Edit(
            "other.lease_until > clock_timestamp()", "other.lease_until > now()"
        ),
        "lapsed this moment": same(
            ONE_INSTANT, "lease_until > clock_timestamp()", "lease_until >= clock_timestamp()"
        ),
        "every job at work counts": Edit("WHERE other.id = effect.job_id AND", "WHERE"),
        "age by the transaction's start": Edit(
            "clock_timestamp() - effect.open_since", "now() - effect.open_since"
        ),
        "age from the last try": Edit(
            "clock_timestamp() - effect.open_since",
            "clock_timestamp() - CASE WHEN effect.open_since IS NOT NULL"
            " THEN effect.last_attempt_at END",
        ),
        "always the only open try": Edit(
            "effect.open_since = effect.last_attempt_at", "effect.open_since IS NOT NULL"
        ),
        "never the only open try": Edit("effect.open_since = effect.last_attempt_at", "false"),
        "nothing open, so neither": Edit(
            "coalesce(effect.open_since = effect.last_attempt_at, false)",
            "effect.open_since = effect.last_attempt_at",
        ),
    }),
    *of_sql("reopen_effects", {
        "any order of jobs": Edit("ORDER BY job_id", ""),
        "every version": Edit("AND job.claim_version = wanted.claim_version", ""),
        "newer versions too": Edit(
            "job.claim_version = wanted.claim_version", "job.claim_version >= wanted.claim_version"
        ),
        "anybody's": Edit("AND job.claimed_by = :claimed_by", ""),
        "lapsed ones too": Edit("AND job.lease_until > clock_timestamp()", ""),
        "lapsed in its transaction too": Edit(
            "job.lease_until > clock_timestamp()", "job.lease_until > now()"
        ),
        "lapsed this moment too": same(
            ONE_INSTANT, "lease_until > clock_timestamp()", "lease_until >= clock_timestamp()"
        ),
        "no lock of the job": Edit("FOR NO KEY UPDATE ) AS held", ") AS held"),
        "stronger lock of the job": Edit("FOR NO KEY UPDATE ) AS held", "FOR UPDATE ) AS held"),
        "no lock of the effect": Edit("FOR NO KEY UPDATE ) AS locked", ") AS locked"),
        "stronger lock of the effect": Edit("FOR NO KEY UPDATE ) AS locked", "FOR UPDATE ) AS locked"),
        "claims not materialized": same(MATERIALIZED, "claim AS MATERIALIZED", "claim AS"),
        "targets not materialized": same(MATERIALIZED, "target AS MATERIALIZED", "target AS"),
        "settled ones too": Edit("effect.state = 'open' AND", ""),
        "held ones too": Edit("effect.state = 'open' AND", "effect.state IN ('open', 'held') AND"),
        "begun since too": Edit("AND effect.requests_sent = claim.requests_seen", ""),
        "begun since too, older ones not": Edit(
            "effect.requests_sent = claim.requests_seen", "effect.requests_sent >= claim.requests_seen"
        ),
        "another key's row": Edit("effect.effect_key = claim.effect_key AND", ""),
        "any order of keys": Edit("ORDER BY effect_key) AS claim", ") AS claim"),
        "a frozen open request is frozen anew": Edit("effect.open_since IS NULL AND (", "("),
        "never frozen anew": Edit("effect.open_since IS NULL AND (", "false AND ("),
        "frozen anew each time": Edit(
            "(effect.request IS NULL OR effect.provider <> :provider)", "true"
        ),
        "frozen anew only elsewhere": Edit("effect.request IS NULL OR", ""),
        "frozen anew only when missing": Edit("OR effect.provider <> :provider", ""),
        "the provider of an open try changes": Edit(
            "provider = CASE WHEN effect.open_since IS NULL THEN :provider ELSE effect.provider END",
            "provider = :provider",
        ),
        "the provider stays for ever": Edit(
            "provider = CASE WHEN effect.open_since IS NULL THEN :provider ELSE effect.provider END",
            "provider = effect.provider",
        ),
        "the account of an open try changes": Edit(
            "account = CASE WHEN effect.open_since IS NULL THEN :account ELSE effect.account END",
            "account = :account",
        ),
        "the account stays for ever": Edit(
            "account = CASE WHEN effect.open_since IS NULL THEN :account ELSE effect.account END",
            "account = effect.account",
        ),
        "a new wire key": Edit(
            "CASE WHEN target.freeze_anew THEN target.wire_key ELSE effect.wire_key END",
            "coalesce(target.wire_key, effect.wire_key)",
        ),
        "the old wire key for ever": Edit(
            "CASE WHEN target.freeze_anew THEN target.wire_key ELSE effect.wire_key END",
            "effect.wire_key",
        ),
        "a new body": Edit(
            "CASE WHEN target.freeze_anew THEN target.request ELSE effect.request END",
            "coalesce(target.request, effect.request)",
        ),
        "a new hash": Edit(
            "WHEN target.freeze_anew THEN target.request_hash ELSE",
            "WHEN true THEN target.request_hash ELSE",
        ),
        "the old hash for ever": Edit(
            "WHEN target.freeze_anew THEN target.request_hash ELSE",
            "WHEN false THEN target.request_hash ELSE",
        ),
        "the age starts again": Edit("coalesce(effect.open_since, moment.now)", "moment.now"),
        "the age never starts": Edit("coalesce(effect.open_since, moment.now)", "effect.open_since"),
        "not counted": Edit("effect.requests_sent + 1", "effect.requests_sent"),
        "the last try stays the first": Edit("last_attempt_at = moment.now", "last_attempt_at = last_attempt_at"),
        "begun at its transaction's start": Edit(
            "(SELECT clock_timestamp() AS now)", "(SELECT now() AS now)"
        ),
        "always begun": Edit("reopened.id IS NOT NULL AS begun", "true AS begun"),
        "every row": Edit("WHERE effect.effect_key = target.effect_key AND", "WHERE"),
        "looks through the ledger for the row to write": same(BY_INDEX,
            "AND effect.effect_key = ANY (ARRAY(SELECT target.effect_key FROM target))", ""
        ),
        "nobody's try": Edit("job_id = target.id,", "job_id = effect.job_id,"),
        "an old version's try": Edit(
            "claim_version = target.claim_version,", "claim_version = effect.claim_version,"
        ),
    }),
    *of("ledger.py", {
        "a known key is called at once": Edit("elif begun[claim]:", "else:"),
    }),
    *of("consumer.py", {
        "the call does not wait for the intent": Edit(
            "begun = await self._begins.submit(intent)",
            """if (request := intent.request) is not None:
            task = asyncio.create_task(self._begins.submit(intent))
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            begun: Begin = Attempt(request.wire_key, request.body, 1, True, float("inf"))
        else:
            begun = await self._begins.submit(intent)""",
        ),
    }),
]  # fmt: skip
