"""A provider and its gateway that do what a test says, call by call, and count what they accept."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from outbox.backoff import Backoff
from outbox.consumer import Consumer
from outbox.gateway import Unrenderable
from outbox.job import Job, Request
from outbox.outcome import Answer, Meaning, Policy
from outbox.settings import OutboxSettings

TOPIC = "email.x"
DAY = 86_400.0

Pause = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Step:
    """What one call meets: whether the provider accepts the mail, and what it lets us know.

    ``before`` runs before the gateway's last check, ``during`` after the request has left.
    """

    meaning: Meaning = Meaning.ACCEPTED
    accepts: bool = False
    reason: str = "scripted"
    retry_after_seconds: float | None = None
    detail: str | None = None
    before: Pause | None = None
    during: Pause | None = None


ACCEPT = Step(accepts=True)
#: Accepted, and the answer is lost on its way.
ANSWER_LOST = Step(Meaning.FAILED, accepts=True, reason="read_timeout")
#: Not accepted, but who is to know?
FAILS = Step(Meaning.FAILED, reason="http_500")
UNAVAILABLE = Step(Meaning.UNAVAILABLE, reason="http_503")
UNREACHED = Step(Meaning.UNREACHED, reason="connect_error")
THROTTLED = Step(Meaning.THROTTLED, reason="http_429", retry_after_seconds=0.05)
REFUSES = Step(Meaning.REFUSED, reason="http_422 validation_error")
WRONG_ACCOUNT = Step(Meaning.MISCONFIGURED, reason="http_401 missing_api_key")


@dataclass(frozen=True, slots=True)
class Call:
    """A request that has left."""

    wire_key: str
    body: bytes
    in_flight: int


class ScriptedGateway:
    """An ``outbox.Gateway`` with a provider behind it.

    ``script[key]`` holds the steps of one effect's calls, in order; ``otherwise`` is for the rest.
    A provider with a memory accepts a key once and replays it; without one it accepts every time.
    """

    provider = "scripted"
    account = "stage"

    def __init__(
        self,
        *,
        memory_seconds: float | None = DAY,
        repeat_unknown: bool = False,
        max_attempts: int = 5,
        topics: tuple[str, ...] = (TOPIC,),
        deadline_seconds: float = 0.5,
    ) -> None:
        self.topics = frozenset(topics)
        self.deadline_seconds = deadline_seconds
        self.the_policy = Policy(memory_seconds, repeat_unknown, max_attempts, Backoff(0.01, 0.05))
        self.script: defaultdict[str, deque[Step]] = defaultdict(deque)
        self.otherwise = ACCEPT
        self.template = "hello {payload}"
        self.unrenderable: set[str] = set()
        self.calls: list[Call] = []
        self.not_started: list[str] = []
        self.accepted: Counter[str] = Counter()
        self._in_flight = 0

    def plan(self, key: str, *steps: Step) -> None:
        """Say what the next calls of an effect meet."""
        self.script[key].extend(steps)

    def calls_of(self, wire_key: str) -> list[Call]:
        """The requests that left under a key, oldest first."""
        return [call for call in self.calls if call.wire_key == wire_key]

    def policy(self, topic: str) -> Policy:  # noqa: ARG002 -- one policy for all
        """Part of ``outbox.Gateway``."""
        return self.the_policy

    async def render(self, job: Job) -> Request:
        """Part of ``outbox.Gateway``."""
        if job.effect_key in self.unrenderable:
            raise Unrenderable("payload.to: missing")
        return Request(job.effect_key, self.template.format(payload=job.payload).encode())

    async def call(
        self,
        wire_key: str,
        body: bytes | None,
        *,
        deadline_seconds: float,  # noqa: ARG002 -- a script is as slow as it says
        may_start: Callable[[], bool],
    ) -> Answer:
        """Part of ``outbox.Gateway``."""
        step = self.script[wire_key].popleft() if self.script[wire_key] else self.otherwise
        if step.before:
            await step.before()
        if not may_start():
            self.not_started.append(wire_key)
            return Answer(Meaning.UNREACHED, "not_started")
        if step.meaning is Meaning.UNREACHED:
            return Answer(Meaning.UNREACHED, step.reason)
        self._in_flight += 1
        self.calls.append(Call(wire_key, body or b"", self._in_flight))
        try:
            return await self._answer(wire_key, step)
        finally:
            self._in_flight -= 1

    async def _answer(self, wire_key: str, step: Step) -> Answer:
        remembers = self.the_policy.memory_seconds is not None
        if step.accepts and not (remembers and self.accepted[wire_key]):
            self.accepted[wire_key] += 1
        if step.during:
            await step.during()
        id_ = (
            f"id-{wire_key}-{self.accepted[wire_key]}" if step.meaning is Meaning.ACCEPTED else None
        )
        return Answer(step.meaning, step.reason, id_, step.detail, step.retry_after_seconds)

    async def close(self) -> None:
        """Part of ``outbox.Gateway``."""


def fast(**given: object) -> OutboxSettings:
    """Settings under which a test waits for nothing that it is not about."""
    return OutboxSettings.load(
        **{"lease_seconds": 3.0, "heartbeat_seconds": 0.5, "poll_seconds": 0.05} | given
    )


def consumer(
    database_url: str, gateway: ScriptedGateway, *, concurrency: int = 10, **settings: object
) -> Consumer:
    """A consumer of the library, in this process."""
    return Consumer(database_url, gateway, fast(**settings), concurrency=concurrency)


async def drain(
    database_url: str,
    gateway: ScriptedGateway,
    *,
    concurrency: int = 10,
    timeout: float = 20,
    **settings: object,
) -> int:
    """Let one consumer work until nothing is left to wait for; its exit code."""
    one = consumer(database_url, gateway, concurrency=concurrency, **settings)
    return await one.run(drain=True, timeout_seconds=timeout)
