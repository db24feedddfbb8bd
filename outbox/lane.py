"""A lane is one provider account: its rate, its outages, its pauses. Pure, with the time passed in.

An outage says nothing about a job. While a lane gives no real answer only probes are let through,
one at a time and ever less often; after it recovers the flow doubles with each real answer, so that
nobody stampedes. When the account itself is at fault the lane pauses and says so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import random

from outbox.outcome import REAL, Answer, Meaning

#: So many answers in a row without a real one, from so many different effects, are an outage. Fewer
#: effects are no outage: a job that fails for ever must not close the lane to others.
OUTAGE_AFTER = 5
OUTAGE_EFFECTS = 3
#: The same refusal from so many different effects in a row speaks of the account, not of them.
REFUSALS_TO_PAUSE = 5
#: 2xx of another shape from so many different effects in a row: that is not the provider.
UNREADABLE_TO_PAUSE = 3
#: Of so many effects it is remembered that they got a bare 403 or 404 once.
BARE_REMEMBERED = 1000
PROBE_SECONDS_FIRST = 1.0
PROBE_SECONDS_MAX = 60.0
PAUSE_PROBE_SECONDS_FIRST = 15.0
PAUSE_PROBE_SECONDS_MAX = 300.0


@dataclass(slots=True)
class _Run:
    """The same thing, from how many different effects in a row."""

    reason: str = ""
    effects: set[str] = field(default_factory=set)
    parties: set[str] = field(default_factory=set)

    def add(self, reason: str, effect_key: str, party: str) -> None:
        if reason != self.reason:
            self.reason, self.effects, self.parties = reason, set(), set()
        self.effects.add(effect_key)
        self.parties.add(party)

    def others(self, reason: str, effect_key: str) -> int:
        """How many effects but this one have met the same."""
        return len(self.effects - {effect_key}) if reason == self.reason else 0

    def clear(self) -> None:
        self.reason, self.effects, self.parties = "", set(), set()


class Lane:
    """How many calls may start now, learnt from the answers."""

    def __init__(
        self,
        concurrency: int,
        rate_per_second: float | None = None,
        dice: Callable[[], float] = random,
    ) -> None:
        self._concurrency = concurrency
        self._rate = rate_per_second
        self._dice = dice
        self._flow = concurrency
        self._bad = 0
        self._bad_effects: set[str] = set()
        self._probes = 0
        self._closed_until = 0.0
        self._throttled_until = 0.0
        self._tokens = 1.0 if rate_per_second else 0.0
        self._tokens_at: float | None = None
        self._refusals = _Run()
        self._bare = _Run()
        self._bare_once: OrderedDict[str, None] = OrderedDict()
        self._unreadable = _Run()
        #: Why the lane is paused until its configuration is mended; ``None`` when it isn't.
        self.paused: str | None = None

    @property
    def down(self) -> bool:
        """Whether the lane lets only probes through."""
        return self.paused is not None or self._outage

    @property
    def probes_new_work(self) -> bool:
        """Whether the next probe passes over open effects, which else go first: every other one
        does, so that jobs which fail for ever can't keep the lane closed.
        """
        return self.down and self._probes % 2 == 0

    @property
    def _outage(self) -> bool:
        return self._bad >= OUTAGE_AFTER and len(self._bad_effects) >= OUTAGE_EFFECTS

    def slots(self, in_flight: int, now: float) -> int:
        """Return how many further calls may start at ``now`` (boot clock, seconds)."""
        if now < max(self._closed_until, self._throttled_until):
            return 0
        limit = 1 if self.down else min(self._flow, self._concurrency)
        return max(0, min(limit - in_flight, self._whole_tokens(now)))

    def wait_seconds(self, now: float) -> float:
        """Return how long until ``slots`` may say more by time alone."""
        closed = max(0.0, self._closed_until - now, self._throttled_until - now)
        if self._rate and self._whole_tokens(now) < 1:
            return max(closed, (1 - self._tokens) / self._rate)
        return closed

    def started(self, now: float) -> None:
        """A call starts: it costs a token where there is a rate."""
        if self._rate:
            self._whole_tokens(now)
            self._tokens -= 1

    def at_fault(self, answer: Answer, effect_key: str) -> bool:
        """Say whether an answer says nothing about this effect, since others met the same.

        A bare 403 or 404 counts as the account's until this effect has got it twice, and no other
        recipient meanwhile.
        """
        match answer.meaning:
            case Meaning.REFUSED_BARE:
                alone = len(self._bare.parties) <= 1
                return not (alone and effect_key in self._bare_once)
            case Meaning.REFUSED:
                return self._refusals.others(answer.reason, effect_key) >= REFUSALS_TO_PAUSE - 1
            case Meaning.ACCEPTED_UNREADABLE:
                others = self._unreadable.others(answer.reason, effect_key)
                return others >= UNREADABLE_TO_PAUSE - 1
            case _:
                return False

    def record(self, answer: Answer, effect_key: str, party: str, now: float) -> None:
        """Learn from an answer (after ``at_fault`` was asked)."""
        self._count_refusals(answer, effect_key, party)
        if answer.meaning is Meaning.MISCONFIGURED:
            self._pause(answer.reason, now)
        elif answer.meaning is Meaning.THROTTLED:
            self._slow_down(answer, now)
        elif answer.meaning in REAL and not self._pausing_run():
            self._recover(answer)
        else:
            self._bad_answer(answer, effect_key, now)

    def _recover(self, answer: Answer) -> None:
        if self.down:
            self._flow = 1
        self._flow = min(self._concurrency, self._flow * 2)
        self._bad = self._probes = 0
        self._bad_effects.clear()
        if answer.meaning in (Meaning.ACCEPTED, Meaning.REFUSED):
            self.paused = None
        if self.paused is None:
            self._closed_until = 0.0

    def _bad_answer(self, answer: Answer, effect_key: str, now: float) -> None:
        run = self._pausing_run()
        if run is not None:
            self._pause(run.reason, now)
            return
        self._bad += 1
        if len(self._bad_effects) < OUTAGE_EFFECTS:
            self._bad_effects.add(effect_key)
        if self._outage:
            self._close(now, PROBE_SECONDS_FIRST, PROBE_SECONDS_MAX)
        if answer.retry_after_seconds is not None:
            self._closed_until = max(
                self._closed_until, now + min(answer.retry_after_seconds, PROBE_SECONDS_MAX)
            )

    def _slow_down(self, answer: Answer, now: float) -> None:
        self._flow = max(1, self._flow // 2)
        # A provider that says "at once" is asked no faster than one that says nothing.
        wait = max(answer.retry_after_seconds or 0.0, PROBE_SECONDS_FIRST)
        # Kept apart from an outage's end: an answer to a call from before doesn't lift it.
        self._throttled_until = max(
            self._throttled_until, now + min(wait, PROBE_SECONDS_MAX) * (1 + self._dice() / 5)
        )

    def _pause(self, reason: str, now: float) -> None:
        if self.paused is None:
            self._probes = 0
        self.paused = reason
        self._close(now, PAUSE_PROBE_SECONDS_FIRST, PAUSE_PROBE_SECONDS_MAX)

    def _close(self, now: float, first: float, longest: float) -> None:
        wait = min(longest, first * 2.0 ** min(self._probes, 30))
        # Answers of calls that were in flight together count as one probe.
        if now >= self._closed_until:
            self._probes += 1
            self._closed_until = now + wait * (1 - self._dice() / 5)

    def _count_refusals(self, answer: Answer, effect_key: str, party: str) -> None:
        if answer.meaning is Meaning.ACCEPTED:
            for run in (self._refusals, self._bare, self._unreadable):
                run.clear()
        elif answer.meaning is Meaning.REFUSED:
            self._refusals.add(answer.reason, effect_key, party)
        elif answer.meaning is Meaning.REFUSED_BARE:
            self._bare.add(answer.reason, effect_key, party)
            self._bare_once[effect_key] = None
            if len(self._bare_once) > BARE_REMEMBERED:
                self._bare_once.popitem(last=False)
        elif answer.meaning is Meaning.ACCEPTED_UNREADABLE:
            self._unreadable.add(answer.reason, effect_key, party)

    def _pausing_run(self) -> _Run | None:
        if len(self._refusals.effects) >= REFUSALS_TO_PAUSE:
            return self._refusals
        if len(self._bare.parties) >= 2 and len(self._bare.effects) >= 2:
            return self._bare
        if len(self._unreadable.effects) >= UNREADABLE_TO_PAUSE:
            return self._unreadable
        return None

    def _whole_tokens(self, now: float) -> int:
        if not self._rate:
            return self._concurrency
        if self._tokens_at is not None:
            burst = max(1.0, self._rate / 10)
            self._tokens = min(burst, self._tokens + (now - self._tokens_at) * self._rate)
        self._tokens_at = now
        return int(self._tokens)
