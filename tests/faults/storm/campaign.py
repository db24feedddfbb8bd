"""A run: which history comes next, for how long, and what the state file remembers of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shop_example.demo.leash import Leash
from tests.faults.storm.history import Chapter, Result, World, tell
from tests.faults.storm.kinds import KINDS, Kind
from tests.faults.storm.lives import ROOT, Nursery
from tests.faults.storm.server import server


@dataclass(slots=True)
class State:
    """The file of JSON lines: a line when a run begins, one a history, one when the run ends."""

    path: Path
    lines: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> State:
        """Read what is there; a line that was torn by a kill is left out."""
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in written if line.endswith(b"\n")]
        if whole != written:
            path.write_bytes(b"".join(whole))
        return cls(path, [json.loads(line) for line in whole])

    def add(self, event: str, **facts: Any) -> None:
        """Write one more line."""
        line = {"event": event, **facts}
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def of(self, event: str) -> Iterator[dict[str, Any]]:
        """The lines of one event."""
        return (line for line in self.lines if line["event"] == event)

    def done(self, kind: Kind) -> int:
        """Faults of a kind so far."""
        return sum(line["faults"] for line in self.of("history") if line["kind"] == kind.name)

    def told(self, kind: Kind) -> Counter[bool]:
        """Histories of a kind so far, by provider."""
        return Counter(
            line["keeps_keys"] for line in self.of("history") if line["kind"] == kind.name
        )


@dataclass(frozen=True, slots=True)
class Campaign:
    """What is to be done: how many faults of which kinds, from which seed on, for how long."""

    state: State
    aims: Mapping[str, int]
    seed: int
    seconds_max: float
    directory: Path
    plant: str | None = None
    keep_going: bool = False

    def run(self, say: Callable[[str], None]) -> bool:
        """Tell histories until all is done, time is over, or something is wrong.

        Says whether all that was told is as it must be.
        """
        started = time.monotonic()
        clean, reason = True, "all done"
        with world(self.directory, self.plant) as here:
            self.state.add("run", aims=dict(self.aims), seed=self.seed, **facts(here))
            for name, reason in impossible().items():
                self.state.add("impossible", kind=name, reason=reason)
            while (chapter := self.next()) is not None:
                if time.monotonic() - started > self.seconds_max:
                    reason = "time is over"
                    break
                result = self._tell(here, chapter)
                say(self._line(result))
                clean = clean and result.clean
                if not result.clean and not self.keep_going:
                    reason = f"something is wrong: {chapter}"
                    break
        self.state.add("end", seconds=round(time.monotonic() - started, 1), reason=reason)
        return clean

    def next(self) -> Chapter | None:
        """The next history: of the kind that is furthest behind, with the provider that is.

        However few faults there are to be, no kind of provider is left out.
        """
        behind = {
            name: self.state.done(KINDS[name]) / aim
            for name, aim in self.aims.items()
            if self.state.done(KINDS[name]) < aim
            or len(self.state.told(KINDS[name])) < len(KINDS[name].providers)
        }
        if not behind:
            return None
        kind = KINDS[min(behind, key=lambda name: behind[name])]
        told = self.state.told(kind)
        keeps_keys = min(kind.providers, key=lambda keeps: told[keeps])
        return Chapter(kind.name, keeps_keys, self.seed + told[keeps_keys])

    def _tell(self, here: World, chapter: Chapter) -> Result:
        kind = KINDS[chapter.kind]
        left = self.aims[kind.name] - self.state.done(kind)
        # A small aim is shared by both kinds of provider.
        share = -(-self.aims[kind.name] // len(kind.providers))
        faults = min(kind.batch, left if left > 0 else share, share)
        try:
            result = tell(here, chapter, kind.story, faults, kind.options)
        except Exception as error:
            error.add_note(f"the rig itself failed, in {chapter} with {faults} faults")
            raise
        self.state.add("history", planned=faults, **result.as_json())
        return result

    def _line(self, result: Result) -> str:
        done, aim = self.state.done(KINDS[result.kind]), self.aims[result.kind]
        what = "ok" if result.clean else f"{result.wrong} WRONG: {dict(result.problems)}"
        each = 1000 * result.seconds / max(1, result.faults)
        return (
            f"{result.chapter:<24} {result.faults:>4} faults, {each:>5.0f} ms each, "
            f"{result.orders:>5} orders, {result.accepted:>5} accepted; "
            f"{done} of {aim}; {what}"
        )


@contextmanager
def world(directory: Path, plant: str | None = None) -> Iterator[World]:
    """A PostgreSQL and a nursery of this run's own; all ends with it, however it ends."""
    directory.mkdir(parents=True, exist_ok=True)
    with Leash() as leash, server(leash) as postgres, Nursery(directory, leash) as nursery:
        yield World(directory, leash, postgres, nursery, plant)


def replay(directory: Path, chapter: Chapter, faults: int | None, plant: str | None) -> Result:
    """Tell one history again."""
    kind = KINDS[chapter.kind]
    with world(directory, plant) as here:
        return tell(here, chapter, kind.story, faults or kind.batch, kind.options)


def facts(here: World) -> dict[str, Any]:
    """What a reader has to know of this run."""
    return {
        "commit": commit(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "postgresql": here.server.version,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "loop": "uvloop" if find_spec("uvloop") else "asyncio",
        "packages": {
            name: version(name) for name in ("psycopg", "httpx", "h11", "aiohappyeyeballs")
        },
    }


def commit() -> str:
    """The checkout's commit, and whether something was changed since; as far as git can say."""
    words = ["git", "describe", "--always", "--dirty=+changes", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def impossible() -> dict[str, str]:
    """The kinds that this machine can't have, and why."""
    reasons = {name: kind.why_not() for name, kind in KINDS.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}


def chosen(faults: int | None) -> list[str]:
    """The kinds of a run that names none: all that this machine can have, and a short run soon."""
    cant = impossible()
    return [
        name for name, kind in KINDS.items() if name not in cant and (kind.short or faults is None)
    ]


def aims(kinds: Sequence[str], faults: int | None) -> dict[str, int]:
    """How many of each kind; ``faults`` is shared out as in the long run, one at least of each."""
    whole = sum(KINDS[name].aim for name in kinds)
    if faults is None:
        return {name: KINDS[name].aim for name in kinds}
    return {name: max(1, round(faults * KINDS[name].aim / whole)) for name in kinds}
