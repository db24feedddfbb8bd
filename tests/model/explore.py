"""Explores the model completely, breadth first, and prints the shortest way to a broken promise.

``python -m tests.model.explore`` runs the large configurations, for minutes each; the tests run the
small ones. ``--sabotage`` prints the trace of each sabotage.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from array import array
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from tests.model.promises import OF_STATES, OF_STEPS, PROMISES
from tests.model.spec import steps
from tests.model.state import GONE, LIVE, Action, Budget, Consumer, Job, State, World

CALM_STEPS_MAX = 200


@dataclass(frozen=True)
class Counterexample:
    """The shortest way from the start to a broken promise."""

    promise: str
    trace: list[tuple[Action, State]]

    def __str__(self) -> str:
        lines = [f"broken after {len(self.trace) - 1} steps: {self.promise}"]
        for number, ((_, before), (action, after)) in enumerate(pairwise(self.trace)):
            name = " ".join(str(word) for word in action)
            lines.append(f"{number + 1:>4}  {name:<24} {'; '.join(_changes(before, after))}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Exploration:
    """What an exploration has found; complete when there is no counterexample."""

    states: int
    transitions: int
    depth: int
    cpu_seconds: float
    actions: Counter[str]
    counterexample: Counterexample | None

    def __str__(self) -> str:
        rate = self.states / max(self.cpu_seconds, 1e-9)
        return (
            f"{self.states:,} states, {self.transitions:,} transitions, depth {self.depth}, "
            f"{self.cpu_seconds:.1f} s of CPU ({rate:,.0f} states/s)"
        )


class StateLimit(Exception):
    """The exploration has met more states than it may keep; it proves nothing."""


class _Numbers(dict[Hashable, int]):
    """Numbers parts in the order in which they are first met."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Hashable] = []

    def __missing__(self, part: Hashable) -> int:
        number = self[part] = len(self.parts)
        self.parts.append(part)
        return number


class _Names:
    """Names states by short byte strings: equal parts are kept once, and named by a number.

    States that differ in nothing that matters have the same name: consumers are alike, and of claim
    versions only order and equality count.
    """

    def __init__(self, w: World) -> None:
        self._numbers = _Numbers()
        jobs, keys = len(w.keys), max(w.keys) + 1
        self._cuts = [jobs, jobs + keys, jobs + keys + w.consumers, jobs + 2 * keys + w.consumers]

    def name(self, s: State) -> bytes:
        number = self._numbers
        jobs, effects, consumers, *_ = s = _plain(s)
        holders = [job.by for job in jobs]
        # After a failover two may believe the same; then the one that is the holder comes first.
        taken = sorted([(number[me], c not in holders, c) for c, me in enumerate(consumers)])
        seats = {c: seat for seat, (_, _, c) in enumerate(taken)}
        seats[GONE] = GONE
        parts = [
            *[number[job if job.by == seats[job.by] else _seated(job, seats)] for job in jobs],
            *[number[effect] for effect in effects],
            *[me for me, _, _ in taken],
            *[number[mail] for mail in s.mails],
            *[number[seen] for seen in s.witnesses],
            number[s[5:]],
        ]
        return array("I", parts).tobytes()

    def state(self, name: bytes) -> State:
        parts: list[Any] = [self._numbers.parts[number] for number in array("I", name)]
        a, b, c, d = self._cuts
        budget, reaper = parts[-1]
        jobs, effects, consumers = tuple(parts[:a]), tuple(parts[a:b]), tuple(parts[b:c])
        return State(
            jobs, effects, consumers, tuple(parts[c:d]), tuple(parts[d:-1]), budget, reaper
        )


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Nothing here is a cycle, and looking for some takes a quarter of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _seated(job: Job, seats: dict[int, int]) -> Job:
    return job._replace(by=seats[job.by])


def _plain(s: State) -> State:
    """Return the state with claim versions counted anew."""
    jobs, effects, consumers = s[:3]
    used = [1 << job.version for job in jobs]
    for me in consumers:
        if me is not None:
            used[me.job] |= 1 << me.version
    for effect in effects:
        if effect is not None:
            used[effect.job] |= 1 << effect.version
    for j, versions in enumerate(used):
        # From 1 on, since a failover takes a version back.
        if versions & 1 or versions & (versions + 2):
            s = _renumbered(s, j, versions)
    return s


def _renumbered(s: State, j: int, used: int) -> State:
    def rank(version: int) -> int:
        return 1 + (used & ((1 << version) - 1)).bit_count()

    s = s.with_job(j, s.jobs[j]._replace(version=rank(s.jobs[j].version)))
    for c, me in enumerate(s.consumers):
        if me is not None and me.job == j:
            s = s.with_consumer(c, me._replace(version=rank(me.version)))
    for key, effect in enumerate(s.effects):
        if effect is not None and effect.job == j:
            s = s.with_effect(key, effect._replace(version=rank(effect.version)))
    return s


#: What goes on when nothing goes wrong any more, in the order in which ``_Search`` lets it happen.
CALM = {
    **dict.fromkeys(
        ("begin", "read", "reopen", "leave", "check_fails", "leave_after_stop", "arrive",
         "deliver", "settle"), 0,
    ),
    "lapse": 1, "promote": 1, "release": 1, "claim": 2, "claim_crashed": 2,
}  # fmt: skip


class Explorer:
    """One complete search of one world."""

    def __init__(
        self, w: World, promises: Collection[str] = PROMISES, *, states_max: int = 20_000_000
    ) -> None:
        self._w = w
        self._of_states = [(name, OF_STATES[name]) for name in promises if name in OF_STATES]
        self._of_steps = [(name, OF_STEPS[name]) for name in promises if name in OF_STEPS]
        self._states_max = states_max
        self._names = _Names(w)
        #: For each state met the one from which it was met first, breadth first.
        self._parents: dict[bytes, bytes] = {}
        #: For each state expanded the one that follows when nothing goes wrong any more.
        self._calm: dict[bytes, bytes | None] = {}
        self._actions: Counter[str] = Counter()

    def run(self) -> Exploration:
        """Search everything, up to the first broken promise.

        Raises:
            StateLimit: there are more states than may be kept.
        """
        started = time.process_time()
        with _no_garbage_collection():
            depth, found = self._search()
            if found is None:
                found = self._endless()
        return Exploration(
            states=len(self._parents),
            transitions=self._actions.total(),
            depth=depth,
            cpu_seconds=time.process_time() - started,
            actions=self._actions,
            counterexample=found,
        )

    def some_traces(self, count: int, seed: int) -> list[list[tuple[Action, State]]]:
        """Return the shortest ways to some of the states that were met, drawn by a seed."""
        return [self._trace(name) for name in Random(seed).sample(list(self._parents), count)]

    def _search(self) -> tuple[int, Counterexample | None]:
        first = self._names.name(self._w.start())
        self._parents[first] = b""
        layer, depth = [first], 0
        while layer:
            following: list[bytes] = []
            for name in layer:
                if found := self._expand(name, following):
                    return depth + 1, found
            if len(self._parents) > self._states_max:
                raise StateLimit(f"more than {self._states_max:,} states at depth {depth}")
            layer, depth = following, depth + 1
        return depth - 1, None

    def _expand(self, name: bytes, following: list[bytes]) -> Counterexample | None:
        before = self._names.state(name)
        calm, calm_rank = None, len(CALM)
        for action, after in steps(self._w, before):
            what = str(action[0])
            self._actions[what] += 1
            for promise, is_broken in self._of_steps:
                if is_broken(self._w, before, action, after):
                    return Counterexample(promise, self._trace(name, action))
            next_name = self._names.name(after)
            if next_name not in self._parents:
                for promise, is_false in self._of_states:
                    if is_false(self._w, after):
                        return Counterexample(promise, self._trace(name, action))
                self._parents[next_name] = name
                following.append(next_name)
            if CALM.get(what, calm_rank) < calm_rank and after.budget == before.budget:
                calm, calm_rank = next_name, CALM[what]
        self._calm[name] = calm
        return None

    def _endless(self) -> Counterexample | None:
        """Find the first state from which, without further faults, not every job ends."""
        ends: set[bytes] = set()
        for name in self._parents:
            way = [name]
            while way[-1] not in ends and (following := self._calm[way[-1]]) is not None:
                way.append(following)
                if len(way) > CALM_STEPS_MAX:
                    return self._without_end(way)
            if way[-1] not in ends and not _ended(self._w, self._names.state(way[-1])):
                return self._without_end(way)
            ends.update(way)
        return None

    def _without_end(self, way: list[bytes]) -> Counterexample:
        trace = self._trace(way[0])
        for following in way[1:]:
            trace.append(self._step(trace[-1][1], following))
        return Counterexample("without faults everything ends", trace)

    def _trace(self, name: bytes, last: Action | None = None) -> list[tuple[Action, State]]:
        """Walk again from the start, so that consumers and versions keep their names on the way."""
        way: list[bytes] = []
        while name:
            way.append(name)
            name = self._parents[name]
        trace: list[tuple[Action, State]] = [((), self._w.start())]
        for following in reversed(way[:-1]):
            trace.append(self._step(trace[-1][1], following))
        if last is not None:
            after = dict(steps(self._w, self._names.state(way[0])))[last]
            trace.append(self._step(trace[-1][1], self._names.name(after), str(last[0])))
        return trace

    def _step(self, s: State, following: bytes, what: str = "") -> tuple[Action, State]:
        return next(
            (action, after)
            for action, after in steps(self._w, s)
            if what in {"", action[0]} and self._names.name(after) == following
        )


def _ended(w: World, s: State) -> bool:
    """Say whether every job has ended, or waits for a person beside its held effect."""
    for j, job in enumerate(s.jobs):
        effect = s.effects[w.keys[j]]
        held = job.place == "resolve" and effect is not None and effect.state == "held"
        if job.place in LIVE and not held:
            return False
    return True


def _changes(before: State, after: State) -> Iterator[str]:
    for j, (old, new) in enumerate(zip(before.jobs, after.jobs, strict=True)):
        if old != new:
            yield f"job {j}: {_job(new)}"
    for key, (row, now) in enumerate(zip(before.effects, after.effects, strict=True)):
        if row != now and now is not None:
            yield (
                f"ledger {key}: {now.state}, by job {now.job} v{now.version}, request {now.sent}, "
                f"open {'-' if now.age is None else f'for {now.age} ticks'}"
            )
    for c, (old_me, me) in enumerate(zip(before.consumers, after.consumers, strict=True)):
        if old_me != me:
            yield f"consumer {c}: {_consumer(me)}"
    for key, (old_mail, mail) in enumerate(zip(before.mails, after.mails, strict=True)):
        if old_mail != mail:
            memory = "remembers" if mail.remembers else "remembers nothing"
            yield f"provider {key}: {mail.accepted} accepted, {memory}"


def _job(job: Job) -> str:
    if job.place != "claimed":
        return job.place + (f" ({job.reason})" if job.reason else "")
    holder = "a dead consumer" if job.by == GONE else f"consumer {job.by}"
    lease = "holds" if job.holds else "lapsed"
    return f"claimed v{job.version} by {holder}, attempt {job.attempts}, lease {lease}"


def _consumer(me: Consumer | None) -> str:
    if me is None:
        return "idle"
    said = me.decision
    if said is None:
        return f"{me.phase} (job {me.job} v{me.version})"
    return (
        f"settles job {me.job} v{me.version} as {said.action}, effect {said.state or 'untouched'}"
    )


#: Small enough for every test run; together they meet every kind of step.
SMALL = (
    World((0, 0), 2, replays=False, budget=Budget(2)),
    World((0, 0), 3, replays=False, budget=Budget(1, people=1)),
    World((0, 0), 3, replays=True, budget=Budget(1)),
    World((0, 0), 2, replays=True, budget=Budget(1, ticks=1)),
    World((0, 0), 2, replays=True, budget=Budget(1, people=1)),
    World((0, 0), 2, replays=True, budget=Budget(1, lost_commits=1)),
    World((0, 0), 2, replays=False, repeat=True, budget=Budget(1, people=1)),
    World((0, 0), 2, replays=False, expires=True, budget=Budget(1)),
    World((0, 1), 3, replays=True, budget=Budget(1)),
    World((0,), 3, replays=False, one_process=True, budget=Budget(2)),
    World((0,), 3, replays=True, stops=True, budget=Budget(1, ticks=2, people=1)),
    World((0,), 2, replays=False, stops=True, budget=Budget(2, people=2)),
    World((0,), 2, replays=True, expires=True, budget=Budget(2, people=1)),
    World((0,), 2, max_attempts=2, replays=True, budget=Budget(3)),
)
#: Two jobs of one key or two, three consumers, three attempts, faults enough to reach the cap.
LARGE = (
    World((0, 0), 3, replays=True, budget=Budget(2, people=1)),
    World((0, 0), 3, replays=True, budget=Budget(3)),
    World((0, 0), 3, replays=False, budget=Budget(2, people=2)),
    World((0, 0), 3, replays=False, budget=Budget(4)),
    World((0, 0), 2, replays=True, budget=Budget(2, ticks=2, people=1)),
    World((0, 0), 2, replays=False, repeat=True, budget=Budget(2, people=1)),
    World((0, 0), 3, replays=False, one_process=True, budget=Budget(2, people=1)),
    World((0, 1), 3, replays=True, budget=Budget(2)),
    World((0,), 3, replays=False, stops=True, budget=Budget(4, people=2)),
    World((0,), 2, replays=True, stops=True, budget=Budget(3, ticks=2, people=1)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Explore as the command line says; 1 when a promise is broken or a sabotage unnoticed."""
    from tests.model.sabotage import SABOTAGES

    parser = argparse.ArgumentParser(prog="python -m tests.model.explore", description=__doc__)
    parser.add_argument("--small", action="store_true", help="the configurations of the tests")
    parser.add_argument("--sabotage", action="store_true", help="the sabotaged variants")
    given = parser.parse_args(arguments)
    failed = 0
    if given.sabotage:
        for sabotage in SABOTAGES:
            found = Explorer(sabotage.world, sabotage.promises).run().counterexample
            failed += found is None or found.promise != sabotage.promise
            _say(f"without {sabotage.world.without}, {found}\n")
        return int(failed > 0)
    for world in SMALL if given.small else LARGE:
        _say(str(world))
        result = Explorer(world).run()
        failed += result.counterexample is not None
        _say(f"    {result}\n{result.counterexample or '    every promise holds'}")
    return int(failed > 0)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
