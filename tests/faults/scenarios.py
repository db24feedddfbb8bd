"""The ways of an e-mail on which consumers are killed, and the steps that each of them has.

What is true after each death is told here, too, from the steps alone: the tests compare it with
what happens, and the kill map in docs/ prints it.
"""

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
#: Where nobody waits for a lease to run out, nor for a deadline: a busy machine changes nothing.
PATIENT = {**SETTINGS, "EMAIL_TIMEOUT_SECONDS": "10", "OUTBOX_LEASE_SECONDS": "30"}
#: A provider that keeps no keys, and what is to be done about what is unknown.
WITHOUT_KEYS = {"EMAIL_KEY_WINDOW_SECONDS": "0", "EMAIL_UNKNOWN": "hold"}

START = (
    "run on uvloop",
    "check_schema",
    "open heartbeat",
    "note_consumer",
    "open listen",
    "LISTEN",
    "open claim",
    "promote_due_jobs",
    "release_ordered_jobs",
    "release_held_jobs",
    "list_lanes",
    "find_crashed_job",
)
#: The same where uvloop is not installed.
START_ON_ASYNCIO = ("run on asyncio", *START[1:])
CALL = ("connect#1", "send#1", "receive#1")
FIRST_TRY = ("open begin", "begin_effects#1", *CALL, "open settle", "settle_attempts#1")
NEXT_TRY = ("begin_effects#2", "read_effects#1", "reopen_effects#1")
CALL_AGAIN = ("send#2", "receive#2", "settle_attempts#2")
END = ("find_pending_job", "forget_consumer")
OF_ITS_OWN = ", of its own#"

_WAY = ("claim_jobs#1", *FIRST_TRY)
_PLAIN = (*START, *_WAY, *END)
_RETRY = (
    *START, *_WAY, f"promote_due_jobs{OF_ITS_OWN}1", "claim_jobs#2", *NEXT_TRY, *CALL_AGAIN, *END
)  # fmt: skip
_REPEAT = ("open begin", "begin_effects#1", "read_effects#1", "reopen_effects#1")
_SETTLE = ("open settle", "settle_attempts#1")
_RECOVERED = (*START, "claim_crashed_job#1", *_REPEAT, *CALL, *_SETTLE, *END)
_GIVEN_TO_A_PERSON = (*START, "claim_crashed_job#1", *_REPEAT[:3], *_SETTLE, *END)
_FIRST_OF_TWO = (
    *START,
    f"release_ordered_jobs{OF_ITS_OWN}1",
    *_WAY,
    f"release_ordered_jobs{OF_ITS_OWN}2",
    "claim_jobs#2",
    "begin_effects#2",
)
_ORDERED = (*_FIRST_OF_TWO, *CALL_AGAIN, *END)
_TWINS = (*_FIRST_OF_TWO, "read_effects#1", "settle_attempts#2", *END)
_LATE_ACCEPTANCE = (
    *START, f"release_held_jobs{OF_ITS_OWN}1", "claim_jobs#1", *_REPEAT[:3], *_SETTLE, *END
)  # fmt: skip
_SLOW = (*START, *_WAY[:-3], "extend_leases", *_WAY[-3:], *END)


@dataclass(frozen=True, slots=True)
class Fate:
    """What is true in the end: the jobs' states by their keys, and the e-mails accepted."""

    states: Sequence[str]
    accepted: int

    def __str__(self) -> str:
        return f"{', '.join(self.states)}; {self.accepted} sent"


@dataclass(frozen=True, slots=True)
class Scenario:
    """A way of one order's e-mail, or of two.

    ``steps`` (``steps_without_keys`` where they differ) name every point of it, each with its
    moments. ``fault`` is what its first request meets. Two ``jobs`` have an ordering key, so that
    the second comes when the first has ended; they have one effect or two. ``crashed``: the first
    consumer died after its intent, before anybody watched; ``late``: it stood still with the
    acceptance in its hand until another had found the job and held it, and died when it had
    settled. ``like_delivery``: up to this step all is as in a delivery, where it is killed.
    ``kills_at``: where consumers die (unset: everywhere else but at the start and the end, which
    are the same on every way). ``ends_as``: its end, whoever dies; ``held_without_keys``: the end
    without a death, too.
    """

    name: str
    about: str
    steps: Sequence[str]
    steps_without_keys: Sequence[str] | None = None
    fault: str | None = None
    fault_without_keys: str | None = None
    jobs: int = 1
    effects: int = 1
    email: str = "jane@example.com"
    crashed: bool = False
    late: bool = False
    paced: bool = False
    loop: str = "uvloop"
    stop_at: str | None = None
    like_delivery: str | None = None
    kills_at: Sequence[str] | None = None
    ends_as: str = "done"
    held_without_keys: bool = False
    recovered_together: int = 1_000

    def steps_of(self, *, keeps_keys: bool) -> Sequence[str]:
        """Every step, with a provider of this kind."""
        return self.steps if keeps_keys else self.steps_without_keys or self.steps

    def fault_of(self, *, keeps_keys: bool) -> str | None:
        """What the first request meets at a provider of this kind."""
        return self.fault if keeps_keys else self.fault_without_keys or self.fault

    def points(self, *, keeps_keys: bool) -> list[str]:
        """Every point, in the order in which a consumer comes to them."""
        return points_of(self.steps_of(keeps_keys=keeps_keys))

    def deaths(self, *, keeps_keys: bool) -> list[str]:
        """The points at which a consumer dies."""
        steps = self.steps_of(keeps_keys=keeps_keys)
        if self is SCENARIOS[0]:
            return points_of(steps)
        before = steps[: steps.index(self.like_delivery)] if self.like_delivery else ()
        elsewhere = {*START, *START_ON_ASYNCIO, *before, *END}
        return points_of(self.kills_at or [step for step in steps if step not in elsewhere])

    def fate(self, point: str | None, *, keeps_keys: bool) -> Fate:
        """What is true in the end when the first consumer dies at this point, or at none."""
        if keeps_keys:
            return self._ended()
        if self.crashed or (self.held_without_keys and point is None):
            return Fate(("held",), int(self.held_without_keys))
        ended, sent = self._passed(point)
        if ended is None:
            return Fate(("held",), 1) if self.held_without_keys else self._ended()
        behind = ("blocked",) * (self.effects - ended - 1)
        return Fate(("done",) * ended + ("held",) + behind, ended + sent)

    def _ended(self) -> Fate:
        sent = self.effects if self.ends_as == "done" else 0
        return Fate((self.ends_as,) * self.effects, sent)

    def _passed(self, point: str | None) -> tuple[int | None, int]:
        """Without keys: how many jobs had ended before the one whose try was open, if one was; and
        whether its e-mail had been accepted.
        """
        open_, tries, sends, first = False, 0, 0, 0
        for passed in self._until(point):
            step, _, moment = passed.rpartition(":")
            if moment == "sent" and self._opens(step):
                open_, first = True, sends
            elif moment == "sent" and step.startswith("settle_attempts"):
                open_, tries = False, tries + 1
            elif moment == "after" and step.startswith("send#"):
                sends += 1
        accepts = self.ends_as == "done" and (tries > 0 or self.fault_without_keys != "429")
        ended = tries if self.effects > 1 else 0
        return (ended if open_ else None), int(accepts and sends > first)

    def _until(self, point: str | None) -> Sequence[str]:
        points = self.points(keeps_keys=False)
        return points if point is None else points[: points.index(point) + 1]

    def _opens(self, step: str) -> bool:
        """Whether this statement writes an intent: a begin does unless it finds one already."""
        if step.startswith("reopen_effects"):
            return True
        steps = self.steps_of(keeps_keys=False)
        following = steps[steps.index(step) + 1 :][:1]
        return step.startswith("begin_effects") and not following[0].startswith("read_effects")


def points_of(steps: Sequence[str]) -> list[str]:
    """Each step's moments. Of a release only its answer says whose it was."""
    return [f"{step}:{moment}" for step in steps for moment in moments_of(step)]


def moments_of(step: str) -> Sequence[str]:
    """Network calls of a client have a before and an after; statements are sent in between."""
    if OF_ITS_OWN in step:
        return ("after",)
    if step.startswith(("connect", "send#", "receive#", "run on ")):
        return ("before", "after")
    return ("before", "sent", "after")


# Without keys a 500 would end it held at once; of a 429 the provider says: not accepted.
RETRY = Scenario(
    "retry",
    "The first request is refused for the moment: 500 with keys, 429 without.",
    _RETRY,
    fault="500_before",
    fault_without_keys="429",
    like_delivery="receive#1",
)
SCENARIOS = (
    Scenario("delivery", "One job, delivered at once.", _PLAIN),
    Scenario(
        "delivery on asyncio",
        "The same on Python's own event loop, as where uvloop is not installed.",
        (*START_ON_ASYNCIO, *_WAY, *END),
        loop="asyncio",
    ),
    RETRY,
    Scenario(
        "no answer",
        "The first request is accepted, and the connection closed without an answer.",
        (
            *START,
            *_WAY[:-2],
            "settle_attempts#1",
            f"promote_due_jobs{OF_ITS_OWN}1",
            "claim_jobs#2",
            *NEXT_TRY,
            "connect#2",
            *CALL_AGAIN,
            "open settle",
            *END,
        ),
        steps_without_keys=_PLAIN,
        fault="drop_after_accept",
        like_delivery="receive#1",
        held_without_keys=True,
        recovered_together=3,
    ),
    # Five refusals in a row pause the lane, as they should; so no more are recovered together.
    Scenario(
        "refusal",
        "The provider refuses the recipient for good: the job is buried.",
        _PLAIN,
        email="jane@refused.example",
        like_delivery="receive#1",
        ends_as="dead",
        recovered_together=3,
    ),
    Scenario(
        "twins",
        "Two jobs of one effect: the second ends as a duplicate.",
        _TWINS,
        jobs=2,
        like_delivery=f"release_ordered_jobs{OF_ITS_OWN}2",
    ),
    Scenario(
        "in order",
        "Two jobs of one ordering key: the second is let into the queue when the first has ended.",
        _ORDERED,
        jobs=2,
        effects=2,
    ),
    Scenario(
        "slow call",
        "The answer takes so long that a heartbeat extends the lease meanwhile.",
        _SLOW,
        fault="late",
        paced=True,
        # What comes before is as in a quick delivery, and each death here waits for the answer.
        kills_at=("extend_leases", "receive#1", "settle_attempts#1"),
    ),
    Scenario(
        "recovery",
        "Another consumer has died between its intent and its call.",
        _RECOVERED,
        steps_without_keys=_GIVEN_TO_A_PERSON,
        crashed=True,
    ),
    Scenario(
        "handed back",
        "SIGTERM comes when a job is claimed and not begun: it is given back, unspent.",
        (*START, "claim_jobs#1", *_SETTLE, "forget_consumer"),
        stop_at="claim_jobs#1:after",
        kills_at=(*_SETTLE, "forget_consumer"),
    ),
    Scenario(
        "told to stop in its call",
        "SIGTERM comes when the request has left: its answer is waited for and settled.",
        (*START, *_WAY, "forget_consumer"),
        stop_at="send#1:after",
        kills_at=("receive#1", *_SETTLE, "forget_consumer"),
    ),
)
#: Without keys alone: with them, nothing is held.
LATE_ACCEPTANCE = Scenario(
    "late acceptance",
    "A consumer stood still with the acceptance in its hand until another had held the job; then it"
    " settled. The job is let back into the queue, and ends without a call.",
    _LATE_ACCEPTANCE,
    late=True,
)
WAYS = (
    *((scenario, keeps_keys) for keeps_keys in (True, False) for scenario in SCENARIOS),
    (LATE_ACCEPTANCE, False),
)
