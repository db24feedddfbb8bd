"""What the parts hand each other: jobs, claims, effects, and what the ledger allowed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class EffectState(StrEnum):
    """What the ledger says of an effect."""

    OPEN = "open"
    DELIVERED = "delivered"
    REJECTED = "rejected"
    HELD = "held"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True)
class Job:
    """A claimed job, as the claim statement returned it.

    ``payload`` is the JSON text as it was stored; ``attempts`` counts this claim too.
    """

    id: int
    topic: str
    priority: int
    position: int
    effect_key: str
    payload: str
    payload_fingerprint: bytes
    claim_version: int
    claimed_by: str
    attempts: int
    max_attempts: int | None
    expired: bool

    @property
    def claim(self) -> tuple[int, int]:
        """Which claim on which job: what an outcome or a try belongs to."""
        return self.id, self.claim_version


@dataclass(frozen=True, slots=True)
class Request:
    """The exact request of an effect, frozen before its first try.

    ``body`` is what goes over the wire (``None`` where an effect needs no request to freeze).
    ``party`` names whom it concerns without saying it (a hash), to tell one bad recipient from a
    bad account.
    """

    wire_key: str
    body: bytes | None
    party: str = ""


@dataclass(frozen=True, slots=True)
class Effect:
    """A ledger row as read for one job.

    ``open_seconds`` is the age of the earliest try that may have been accepted, by the database's
    clock; ``None`` when no try is open. ``sole_open``: the last try is the only open one.
    """

    job_id: int
    effect_key: str
    attempt_job_id: int
    attempt_claim_version: int
    topic: str
    payload_fingerprint: bytes
    provider: str
    account: str
    wire_key: str
    state: str
    request: bytes | None
    requests_sent: int
    detail: str | None
    open_seconds: float | None
    sole_open: bool
    at_work_elsewhere: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """A try that the ledger has begun: the intent is committed, the call may start.

    ``sole_open`` says that no earlier try of this effect is open; ``requests_sent`` counts this.
    ``call_before`` is the moment on the boot clock at which the call must have ended, for the
    provider's memory of the key (infinity where that doesn't bind).
    """

    wire_key: str
    body: bytes | None
    requests_sent: int
    sole_open: bool
    call_before: float
    last_detail: str | None = None
