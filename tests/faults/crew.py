"""The test's side of ``consumer_process``: several of them, working side by side."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: by a signal, with an exit code, or not yet (stopped)."""

    signal: str | None = None
    code: int | None = None
    stopped: int | None = None
    points: Sequence[str] = ()


class Hand:
    """One process that forks others, one after the other."""

    def __init__(self, log: Path) -> None:
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.consumer_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def run(
        self,
        settings: Mapping[str, str],
        *,
        act_at: str | None = None,
        act: str = "SIGKILL",
        then: Mapping[str, str] = MappingProxyType({}),
        output: Path | None = None,
        **order: object,
    ) -> End:
        """One process with these settings, to its end.

        It sends itself a signal at a point; ``then`` has more signals by their points. ``output``
        is where it prints.
        """
        acts = {**({act_at: act} if act_at else {}), **then}
        name = str(output) if output else ""
        return self._ask(settings=dict(settings), acts=acts, output=name, **order)

    def resume(self, pid: int) -> End:
        """Let a consumer go on that has stopped itself, to its end."""
        return self._ask(resume=pid)

    def dismiss(self) -> None:
        """Let it end."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process.wait(20)
        self._log.close()

    def _ask(self, **order: Any) -> End:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return End(**json.loads(self._process.stdout.readline()))


class Crew(tuple[Hand, ...]):
    """Hands that share the work of a test."""

    __slots__ = ()

    def each(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the same with each item, all at a time; one item a hand."""
        assert len(items) <= len(self)
        with ThreadPoolExecutor(len(self)) as threads:
            return list(threads.map(work, items))


@contextmanager
def crew(directory: Path, size: int) -> Iterator[Crew]:
    """So many hands, dismissed at the end; they log to ``hand-N.log``."""
    hands = Crew(Hand(directory / f"hand-{n}.log") for n in range(size))
    try:
        yield hands
    finally:
        for hand in hands:
            hand.dismiss()
