"""Two decisions at once: whatever one waits for, the outcome is that of one after the other.

The model takes each statement for one atomic step. In PostgreSQL two of them overlap: one holds its
row locks until it commits, the other waits, and goes on with what it finds then (READ COMMITTED
looks at the locked rows anew, and at nothing else). Here one is kept from committing until the
other has ended or waits; then tables and processes must be where the model is after the one and
then the other, in some order.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import permutations
from random import Random

from outbox.cancel import cancel
from outbox.connection import Connection
from outbox.operator import Operator
from outbox.resolve import Resolution, resolve
from outbox.retry import Permission, retry
from tests.model.process import CALL
from tests.model.replay import Bench, Replay, Trace
from tests.model.seat import END, WAIT_SECONDS, Disagreement
from tests.model.spec import holds, steps
from tests.model.state import Action, State, World
from tests.model.traces import random_trace

STATEMENTS = {
    "begin": "begin_effects",
    "read": "read_effects",
    "reopen": "reopen_effects",
    "settle": "settle_attempts",
}
PEOPLE = frozenset({"cancel", "retry", "resolve"})
WAITING = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@dataclass(frozen=True)
class Pair:
    """A history, and two steps that are possible at its end and concern the same key."""

    world: World
    trace: Trace
    first: Action
    second: Action
    #: The model's states after one and then the other, in each order that is possible.
    outcomes: tuple[State, ...]

    @property
    def kind(self) -> tuple[str, str]:
        """What happens while what waits."""
        return str(self.second[0]), str(self.first[0])

    def __str__(self) -> str:
        history = "\n".join(f"  {' '.join(map(str, step))}" for step, _ in self.trace[1:])
        return f"{self.second} while {self.first} is not committed, after\n{history}"


def random_pair(seed: int) -> Pair:
    """Return a pair along a random trace: first its kind is drawn, then one of the kind."""
    dice = Random(seed)
    world, trace = random_trace(seed)
    kinds: dict[tuple[str, str], list[Pair]] = {}
    for end in dice.sample(range(1, len(trace) + 1), 8):
        for pair in _pairs(world, trace[:end]):
            kinds.setdefault(pair.kind, []).append(pair)
    if not kinds:
        return random_pair(seed + 1_000_000)
    names = sorted(kinds)
    (kind,) = dice.choices(names, [16 >> 2 * _people(kind) for kind in names])
    return dice.choice(kinds[kind])


def _pairs(w: World, trace: Trace) -> Iterator[Pair]:
    now = trace[-1][1]
    possible = {action: after for action, after in steps(w, now) if _is_statement(action)}
    then = {action: dict(steps(w, after)) for action, after in possible.items()}
    for first, second in permutations(possible, 2):
        idle = possible[first] == now or first[0] == "read"
        if idle or _key(w, now, first) != _key(w, now, second):
            continue
        if now.budget.people < _people((str(first[0]), str(second[0]))):
            continue
        both, reverse = then[first].get(second), then[second].get(first)
        if possible[second] == now and both == possible[first]:
            continue  # it changes nothing, before or after
        if outcomes := tuple(state for state in (both, reverse) if state is not None):
            yield Pair(w, trace, first, second, outcomes)


def _people(kind: tuple[str, ...]) -> int:
    return sum(name in PEOPLE for name in kind)


def _is_statement(action: Action) -> bool:
    return action[0] in PEOPLE or action[0] in STATEMENTS


def _key(w: World, s: State, action: Action) -> int:
    if action[0] == "resolve":
        return int(action[1])
    if action[0] in PEOPLE:
        return w.keys[int(action[1])]
    me = s.consumers[int(action[1])]
    assert me is not None, "who takes a step has a claim"
    return w.keys[me.job]


class Overlap:
    """A bench with a second connection, on which a transaction can be kept open."""

    def __init__(self, bench: Bench, slow: Connection) -> None:
        self._bench = bench
        self._fast, self._slow = bench.line.connection, slow

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str) -> AsyncIterator[Overlap]:
        async with Bench.open(url) as bench, Connection(url, "model, slow") as slow:
            yield cls(bench, slow)

    async def run(self, pair: Pair) -> bool:
        """Walk along the history, then take both steps at once; say whether one waited.

        Raises:
            Disagreement: what came of it comes of neither order.
        """
        async with self._bench.history(pair.world) as history:
            await history.walk(pair.trace)
            waited = await self._at_once(history, pair)
            await self._judge(history, pair)
        return waited

    async def _at_once(self, history: Replay, pair: Pair) -> bool:
        raw = await self._slow.raw()
        await raw.execute("BEGIN")
        self._bench.line.connection = self._slow
        people = self._bench.operator.connection
        people.execute("BEGIN")
        try:
            await self._take(history, pair.first, self._bench.operator)
        finally:
            self._bench.line.connection = self._fast
        second = asyncio.create_task(self._take(history, pair.second, self._bench.operator_beside))
        waited = await self._ends_or_waits(second)
        await raw.execute("COMMIT")
        people.execute("COMMIT")
        async with asyncio.timeout(WAIT_SECONDS):
            await second
        return waited

    async def _ends_or_waits(self, step: asyncio.Task[None]) -> bool:
        async with asyncio.timeout(WAIT_SECONDS):
            while not step.done():
                row = self._bench.sql.execute(WAITING).fetchone()
                if row is not None and row[0]:
                    return True
                await asyncio.sleep(0.001)
        return False

    async def _take(self, history: Replay, action: Action, operator: Operator) -> None:
        name, number = action[0], int(action[1])
        if name in STATEMENTS:
            await history.processes[number].seat.run(STATEMENTS[str(name)])
        elif name == "cancel":
            await asyncio.to_thread(cancel, operator, [history.ids[number]])
        elif name == "retry":
            permission = Permission(send_again=len(action) > 2)
            await asyncio.to_thread(retry, operator, [history.ids[number]], permission)
        else:
            how = Resolution(str(action[2]))
            await asyncio.to_thread(resolve, operator, [f"key-{number}"], how)

    async def _judge(self, history: Replay, pair: Pair) -> None:
        found = []
        for outcome in pair.outcomes:
            try:
                history.compare(outcome)
                await self._judge_processes(history, pair, outcome)
            except Disagreement as error:
                found.append(error)
            else:
                return
        raise Disagreement("\n".join(map(str, [pair, *found])))

    async def _judge_processes(self, history: Replay, pair: Pair, s: State) -> None:
        for name, *numbers in (pair.first, pair.second):
            if name in STATEMENTS:
                c = int(numbers[0])
                await history.processes[c].seat.expect(_point(pair.world, s, c))
                me = s.consumers[c]
                if me is not None and me.phase == "settle":
                    await history.check_decision(c, me)


def _point(w: World, s: State, c: int) -> str:
    """Where a process is once it knows what the model's consumer knows."""
    me = s.consumers[c]
    if me is None:
        return END
    if me.phase == "begun":
        return CALL if holds(w, s, c, me) and me.in_memory else STATEMENTS["settle"]
    return STATEMENTS[me.phase]
