"""Bugs to plant into the consumers, to see whether the storm finds them.

``--plant tests.faults.storm.plants:NAME``. A rig that finds nothing in these would find nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from outbox import statements, verdict
from outbox.consumer import Consumer
from outbox.job import Attempt, EffectState, Job
from outbox.outcome import JobAction, Outcome
from outbox.settle import Settlement


def repeat_without_keys() -> None:
    """What is unknown is sent again, to a provider that can't tell."""
    os.environ["EMAIL_UNKNOWN"] = "repeat"


def trust_in_old_keys() -> None:
    """The provider is believed to remember a key for a day, and doesn't."""
    os.environ["EMAIL_KEY_WINDOW_SECONDS"] = "86400"


def settle_without_fence() -> None:
    """Whoever comes late writes over what another has written."""
    fence = r"AND job\.claim_version = outcome\.claim_version\s+AND job\.claimed_by = :claimed_by"
    _change("settle_attempts", fence, "")


def claim_what_is_claimed() -> None:
    """A claim takes jobs that another consumer is at work on."""
    _change("claim_jobs", r"AND job\.lease_until IS NULL", "")


def blind_to_the_others() -> None:
    """An open effect is nobody's at work, whatever its claim says."""
    _change("read_effects", r"AND other\.lease_until > clock_timestamp\(\)", "AND false")


def hold_nothing() -> None:
    """An open effect that can't be repeated safely is taken for unsent."""

    def call(*_: object) -> verdict.Call:
        return verdict.Call(sole_open=True, seconds_left=float("inf"))

    verdict._repeat = call  # type: ignore[assignment]


def settle_before_the_call() -> None:
    """Delivered is written down first, and sent afterwards."""
    original: Callable[..., Any] = Consumer._call

    @wraps(original)
    async def call(self: Consumer, job: Job, attempt: Attempt, party: str) -> Outcome:
        done = Outcome(
            JobAction.DONE,
            effect_state=EffectState.DELIVERED,
            requests_seen=attempt.requests_sent,
            nothing_open=True,
        )
        await self._settles.submit(Settlement(job, done))
        outcome: Outcome = await original(self, job, attempt, party)
        return outcome

    Consumer._call = call  # type: ignore[method-assign]


def _change(name: str, pattern: str, replacement: str) -> None:
    original = statements.text

    def text(wanted: str) -> str:
        found = original(wanted)
        if wanted != name:
            return found
        changed, count = re.subn(pattern, replacement, found)
        assert count, f"{name}: nothing like {pattern}"
        return changed

    statements.text = text  # type: ignore[assignment]
    statements.psycopg.cache_clear()
    statements.psycopg(name)
