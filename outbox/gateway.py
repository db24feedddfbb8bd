"""The way to the outside: what a consumer needs of whatever performs the effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from outbox.job import Job, Request
from outbox.outcome import Answer, Policy


class Unrenderable(Exception):
    """A payload can't become a request, now or ever; the text says why, without its values.

    The job is dead at once with this reason; its batch mates are unharmed.
    """


class Gateway(Protocol):
    """Renders requests and calls one provider account."""

    @property
    def provider(self) -> str:
        """The provider's short name, as the ledger keeps it (``resend``)."""

    @property
    def account(self) -> str:
        """Which account at that provider, without secrets (host, and a name where one is set)."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics served; jobs of others are left alone."""

    @property
    def deadline_seconds(self) -> float:
        """The total time that one call may take."""

    def policy(self, topic: str) -> Policy:
        """Return what may be done about effects of a topic."""

    async def render(self, job: Job) -> Request:
        """Turn a job into the exact request, as bytes: a pure function of its payload.

        Raises:
            Unrenderable: the payload can't be rendered.
        """

    async def call(
        self,
        wire_key: str,
        body: bytes | None,
        *,
        deadline_seconds: float,
        may_start: Callable[[], bool],
    ) -> Answer:
        """Perform one request and classify the answer; never raises for what the outside does.

        Ends within ``deadline_seconds``. ``may_start`` is asked immediately before the first byte
        is written: when it says no, nothing is written and the answer is UNREACHED.
        """

    async def close(self) -> None:
        """Close connections; calls in flight have ended by then."""
