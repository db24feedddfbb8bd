"""The ledger of effects, which is the dedupe table: begin a try of an effect, or learn why not.

The intent is written and committed, with the frozen request, before the first byte leaves. What the
ledger says of a key decides what may follow (``verdict``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outbox import verdict
from outbox.clock import boot_seconds
from outbox.connection import Connection
from outbox.errors import LeaseLost
from outbox.job import Attempt, Effect, Job, Request
from outbox.outcome import Outcome, Policy
from outbox.verdict import Call, Place


@dataclass(frozen=True, slots=True)
class Intent:
    """A job that wants to begin its effect.

    ``may_insert``: the key may be new; else (expired, over its cap, unrenderable) the ledger is
    only asked what has become of it. ``request`` may be missing then: an open try is repeated with
    the frozen one. ``otherwise`` is the outcome where neither is there.
    """

    job: Job
    request: Request | None
    may_insert: bool = True
    otherwise: Outcome | None = None


@dataclass(frozen=True, slots=True)
class _Begun:
    job_id: int
    claim_version: int
    begun: bool


@dataclass(frozen=True, slots=True)
class _Reopened:
    job_id: int
    claim_version: int
    begun: bool
    request: bytes | None
    wire_key: str | None
    requests_sent: int | None


#: What begin returns for each intent: a try to carry out, or an outcome to settle without a call.
Begin = Attempt | Outcome | LeaseLost
#: By claim, not by job: after an outage one batch may hold an old claim on a job beside a new one.
_Results = dict[tuple[int, int], Begin]


class Ledger:
    """Begins attempts in batches, each fenced by its job's claim."""

    def __init__(
        self, connection: Connection, claimed_by: str, place: Place, policy: Callable[[str], Policy]
    ) -> None:
        self._connection = connection
        self._claimed_by = claimed_by
        self._place = place
        self._policy = policy

    async def begin(self, intents: Sequence[Intent]) -> list[Begin]:
        """Begin each intent's effect, or say what to settle instead; in the order given.

        Of jobs with the same key the one with the lowest id goes first; where it has a call to
        make, the others wait for it. Running it again after a lost answer is safe: a try that
        this claim has begun is recognised.
        """
        results: _Results = {}
        first = _lowest_job_per_key(intents)
        leaders = [intent for intent in intents if first[intent.job.effect_key] == intent.job.id]
        await self._insert([intent for intent in leaders if intent.may_insert], results)
        called = {id_ for (id_, _), begin in results.items() if isinstance(begin, Attempt)}
        for intent in intents:
            if first[intent.job.effect_key] in called and intent.job.claim not in results:
                results[intent.job.claim] = verdict.wait_for_other()
        await self._read([i for i in intents if i.job.claim not in results], first, results)
        return [results[intent.job.claim] for intent in intents]

    async def _insert(self, intents: Sequence[Intent], results: _Results) -> None:
        """Write new ledger rows; what was there already is left for ``_read``."""
        if not intents:
            return
        requests = [intent.request for intent in intents if intent.request is not None]
        rows = await self._connection.fetch(
            _Begun,
            "begin_effects",
            job_ids=[intent.job.id for intent in intents],
            claim_versions=[intent.job.claim_version for intent in intents],
            wire_keys=[request.wire_key for request in requests],
            requests=[request.body for request in requests],
            request_hashes=[_hash(request.body) for request in requests],
            claimed_by=self._claimed_by,
            provider=self._place.provider,
            account=self._place.account,
        )
        begun = {(row.job_id, row.claim_version): row.begun for row in rows}
        for intent, request in zip(intents, requests, strict=True):
            claim = intent.job.claim
            if claim not in begun:
                results[claim] = LeaseLost(f"job {intent.job.id}: lost before its call")
            elif begun[claim]:
                results[claim] = Attempt(
                    request.wire_key, request.body, 1, sole_open=True, call_before=float("inf")
                )

    async def _read(
        self, intents: Sequence[Intent], first: Mapping[str, int], results: _Results
    ) -> None:
        """Decide about keys that are in the ledger; begin the further tries that are allowed."""
        if not intents:
            return
        read_at = boot_seconds()
        rows = await self._connection.fetch(
            Effect,
            "read_effects",
            job_ids=[intent.job.id for intent in intents],
            effect_keys=[intent.job.effect_key for intent in intents],
        )
        effects = {row.job_id: row for row in rows}
        again: list[tuple[Intent, Effect, Call]] = []
        for intent in intents:
            effect = effects.get(intent.job.id)
            decided = self._decide(intent, effect, read_at)
            if not isinstance(decided, Call):
                results[intent.job.claim] = decided
            elif effect is not None and first[effect.effect_key] == intent.job.id:
                again.append((intent, effect, decided))
            else:
                results[intent.job.claim] = verdict.wait_for_other()
        await self._reopen(again, read_at, results)

    def _decide(self, intent: Intent, effect: Effect | None, read_at: float) -> Call | Begin:
        job, policy = intent.job, self._policy(intent.job.topic)
        if effect is None:
            decided = intent.otherwise or verdict.without_effect(job, policy)
            return decided or verdict.wait_for_other()
        if _begun_by_this_claim(effect, job):
            return _resumed(effect, policy, read_at)
        word = verdict.with_effect(effect, job, policy, self._place)
        frozen = effect.request is not None and effect.provider == self._place.provider
        if isinstance(word, Call) and intent.otherwise and not frozen:
            return intent.otherwise
        return word

    async def _reopen(
        self,
        again: Sequence[tuple[Intent, Effect, Call]],
        read_at: float,
        results: _Results,
    ) -> None:
        if not again:
            return
        requests = [intent.request for intent, _, _ in again]
        rows = await self._connection.fetch(
            _Reopened,
            "reopen_effects",
            job_ids=[intent.job.id for intent, _, _ in again],
            claim_versions=[intent.job.claim_version for intent, _, _ in again],
            requests_seen=[effect.requests_sent for _, effect, _ in again],
            requests=[request and request.body for request in requests],
            request_hashes=[request and _hash(request.body) for request in requests],
            wire_keys=[request and request.wire_key for request in requests],
            claimed_by=self._claimed_by,
            provider=self._place.provider,
            account=self._place.account,
        )
        reopened = {(row.job_id, row.claim_version): row for row in rows}
        for intent, effect, call in again:
            row = reopened.get(intent.job.claim)
            results[intent.job.claim] = _reopened(intent.job, row, effect, call, read_at)


def _lowest_job_per_key(intents: Sequence[Intent]) -> dict[str, int]:
    first: dict[str, int] = {}
    for intent in intents:
        key = intent.job.effect_key
        first[key] = min(intent.job.id, first.get(key, intent.job.id))
    return first


def _hash(body: bytes | None) -> bytes | None:
    return None if body is None else hashlib.sha256(body).digest()


def _begun_by_this_claim(effect: Effect, job: Job) -> bool:
    return (effect.attempt_job_id, effect.attempt_claim_version) == (job.id, job.claim_version)


def _resumed(effect: Effect, policy: Policy, read_at: float) -> Begin:
    """This claim has begun the try already: the answer to its begin was lost, nothing has left."""
    if effect.state != "open" or effect.open_seconds is None:
        return verdict.wait_for_other()
    left = float("inf")
    if not effect.sole_open and policy.memory_seconds is not None:
        left = policy.memory_seconds - effect.open_seconds
    return Attempt(
        effect.wire_key,
        effect.request,
        effect.requests_sent,
        sole_open=effect.sole_open,
        call_before=read_at + left,
        last_detail=effect.detail,
    )


def _reopened(job: Job, row: _Reopened | None, effect: Effect, call: Call, read_at: float) -> Begin:
    if row is None:
        return LeaseLost(f"job {job.id}: lost before its call")
    if not row.begun or row.wire_key is None or row.requests_sent is None:
        return verdict.wait_for_other()
    return Attempt(
        row.wire_key,
        row.request,
        row.requests_sent,
        sole_open=call.sole_open,
        call_before=read_at + call.seconds_left,
        last_detail=effect.detail,
    )
