"""Whose fault a failure is: the job's own, or an outage's, which says nothing about the job.

A failure costs its attempt only while the lane otherwise gets real answers. The answer that decides
is the next one from another effect: a real one, and the failure was the job's own; another failure,
and both belong to a run. Where none comes in time, a real answer during the call itself decides;
and where there was none, the effect's next failure does.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

#: How long a failure waits for another effect's answer. Longer says little more about the moment.
GRACE_SECONDS = 1.0
_REMEMBERED = 64
_UNDECIDED_REMEMBERED = 10_000


class Evidence:
    """The lane's latest answers, as evidence on each other."""

    def __init__(self, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._waiting: dict[asyncio.Future[bool], str] = {}
        self._real: deque[tuple[str, float]] = deque(maxlen=_REMEMBERED)
        self._undecided: OrderedDict[str, float] = OrderedDict()

    def record(self, effect_key: str, *, real: bool, now: float) -> None:
        """Take an answer into account; ``now`` on the boot clock, seconds."""
        if real:
            self._real.append((effect_key, now))
        for future, key in list(self._waiting.items()):
            if key != effect_key and not future.done():
                future.set_result(real)

    async def own_fault(self, effect_key: str, started: float, *, others: bool = True) -> bool:
        """Say whether the failure of a call that began at ``started`` was the effect's own.

        ``others``: whether another effect's answer can come; else there is nothing to wait for.
        Where nothing decides by now, the effect's next failure is the witness: if others have been
        answered between the two, both were its own, and one is charged.
        """
        decided = await self._next_answer(effect_key) if others else None
        if decided is None and self._answered_since(effect_key, started):
            decided = True
        before = self._undecided.pop(effect_key, None)
        if decided is not None:
            return decided
        self._undecided[effect_key] = started
        if len(self._undecided) > _UNDECIDED_REMEMBERED:
            self._undecided.popitem(last=False)
        return before is not None and self._answered_since(effect_key, before)

    async def _next_answer(self, effect_key: str) -> bool | None:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[future] = effect_key
        try:
            async with asyncio.timeout(self._grace_seconds):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._waiting[future]

    def _answered_since(self, effect_key: str, started: float) -> bool:
        return any(key != effect_key and ended >= started for key, ended in self._real)
