"""The ways of an e-mail on which consumers are killed, and the steps that each of them has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Short times, so that a map of hundreds of deaths is done in a minute.
SETTINGS = {
    "EMAIL_APP": "tests.faults.app:emails",
    "EMAIL_PROVIDER": "resend",
    "EMAIL_API_KEY": "a-key",
    "EMAIL_FROM": "Shop <shop@example.com>",
    "EMAIL_TIMEOUT_SECONDS": "0.5",
    "EMAIL_CONCURRENCY": "1",
    "OUTBOX_LEASE_SECONDS": "1.5",
    "OUTBOX_HEARTBEAT_SECONDS": "0.3",
    "OUTBOX_POLL_SECONDS": "0.05",
    "OUTBOX_BACKOFF_SECONDS": "0.05",
    "OUTBOX_BACKOFF_MAX_SECONDS": "0.1",
}
#: A provider that keeps no keys, and what is to be done about what is unknown.
WITHOUT_KEYS = {"EMAIL_KEY_WINDOW_SECONDS": "0", "EMAIL_UNKNOWN": "hold"}

START = (
    "open heartbeat",
    "note_consumer",
    "open listen",
    "open claim",
    "promote_due_jobs",
    "release_ordered_jobs",
    "release_held_jobs",
    "list_lanes",
    "find_crashed_job",
)
CALL = ("connect#1", "send#1", "send#2", "receive#1")
FIRST_TRY = ("open begin", "begin_effects#1", *CALL, "open settle", "settle_attempts#1")
NEXT_TRY = ("begin_effects#2", "read_effects#1", "reopen_effects#1")
CALL_AGAIN = ("send#3", "send#4", "receive#2", "settle_attempts#2")
END = ("count_pending_jobs", "forget_consumer")
PROMOTION = "promote_due_jobs, of its own#1"

_PLAIN = (*START, "claim_jobs#1", *FIRST_TRY, *END)
_RETRY = (
    *START,
    "claim_jobs#1",
    *FIRST_TRY,
    PROMOTION,
    "claim_jobs#2",
    *NEXT_TRY,
    *CALL_AGAIN,
    *END,
)
_REPEAT = ("open begin", "begin_effects#1", "read_effects#1", "reopen_effects#1")
_RECOVERED = (
    *START,
    "claim_crashed_job#1",
    *_REPEAT,
    *CALL,
    "open settle",
    "settle_attempts#1",
    *END,
)
_GIVEN_TO_A_PERSON = (
    *START, "claim_crashed_job#1", *_REPEAT[:3], "open settle", "settle_attempts#1", *END
)  # fmt: skip


_TWIN = ("claim_jobs#2", "begin_effects#2", "read_effects#1", "settle_attempts#2")
_TWINS = (*START, "claim_jobs#1", *FIRST_TRY, *_TWIN, *END)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way of one order's e-mail.

    ``steps`` (``steps_without_keys`` where they differ) name every point of it, each with a before
    and an after. ``fault`` is what its first request meets. ``crashed``: its first consumer died
    after its intent, before anybody watched. ``kills_at``: where consumers die (unset: everywhere
    after the start, which is the same on every way). ``ends_as``: its end, whoever dies.
    """

    name: str
    steps: Sequence[str]
    steps_without_keys: Sequence[str] | None = None
    fault: str | None = None
    fault_without_keys: str | None = None
    jobs: int = 1
    email: str = "jane@example.com"
    crashed: bool = False
    paced: bool = False
    settings: tuple[tuple[str, str], ...] = ()
    kills_at: Sequence[str] | None = None
    ends_as: str = "done"
    recovered_together: int = 1_000

    def steps_of(self, *, keeps_keys: bool) -> Sequence[str]:
        """Every step, with a provider of this kind."""
        return self.steps if keeps_keys else self.steps_without_keys or self.steps

    def fault_of(self, *, keeps_keys: bool) -> str | None:
        """What the first request meets at a provider of this kind."""
        return self.fault if keeps_keys else self.fault_without_keys or self.fault


SCENARIOS = (
    Scenario("delivery", _PLAIN),
    # Without keys a 500 would end it held at once; of a 429 the provider says: not accepted.
    Scenario("retry", _RETRY, fault="500_before", fault_without_keys="429"),
    # Five refusals in a row pause the lane, as they should; so no more are recovered together.
    Scenario("refusal", _PLAIN, email="jane@refused.example", ends_as="dead", recovered_together=3),
    Scenario("twins", _TWINS, jobs=2),
    Scenario(
        "slow call",
        (*_PLAIN, "extend_leases"),
        fault="late",
        paced=True,
        # What comes before is as in a quick delivery, and each death here waits for the answer.
        kills_at=("extend_leases", "receive#1", "settle_attempts#1"),
        settings=(("EMAIL_TIMEOUT_SECONDS", "1.5"), ("OUTBOX_LEASE_SECONDS", "3.0")),
    ),
    Scenario("recovery", _RECOVERED, steps_without_keys=_GIVEN_TO_A_PERSON, crashed=True),
)
