"""An effect that costs nothing, so that what is measured is the way to it and back."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.jobs import TOPIC
from outbox.backoff import Backoff
from outbox.job import Job, Request
from outbox.outcome import Answer, Meaning, Policy

ACCOUNT = "local"
PROVIDER = "none"
_POLICY = Policy(86_400.0, repeat_unknown=False, max_attempts=5, backoff=Backoff())


class NoOp:
    """An ``outbox.Gateway`` that accepts at once, and remembers when each call came.

    ``request_bytes``: how long the frozen request is; 0: there is none to freeze. ``on_call`` is
    told the key of each call.
    """

    provider = PROVIDER
    account = ACCOUNT
    topics = frozenset({TOPIC})
    deadline_seconds = 5.0

    def __init__(
        self,
        request_bytes: int,
        on_call: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._body = b"x" * request_bytes if request_bytes else None
        self._on_call = on_call
        self.calls = 0

    def policy(self, topic: str) -> Policy:  # noqa: ARG002 -- one for all
        """Part of ``outbox.Gateway``."""
        return _POLICY

    async def render(self, job: Job) -> Request:
        """Part of ``outbox.Gateway``."""
        return Request(job.effect_key, self._body)

    async def call(
        self,
        wire_key: str,
        body: bytes | None,
        *,
        deadline_seconds: float,  # noqa: ARG002 -- it takes no time
        may_start: Callable[[], bool],
    ) -> Answer:
        """Part of ``outbox.Gateway``."""
        assert body == self._body
        if not may_start():
            return Answer(Meaning.UNREACHED, "not_started")
        self.calls += 1
        self._on_call(wire_key)
        return Answer(Meaning.ACCEPTED, "accepted", message_id=f"id-{wire_key}")

    async def close(self) -> None:
        """Part of ``outbox.Gateway``."""
