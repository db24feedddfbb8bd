"""A pytest plugin that hunts mutants: for each, the tests of its statement until one fails.

All in one session, for speed: a statement is a file that is read anew. The session belongs to a
copy of the checkout.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from outbox import consumer
from tests.mutants.guards import MUTANTS
from tests.mutants.mutant import OUTBOX, Mutant, read
from tests.mutants.usage import forget

HUNT = "MUTANTS_HUNT"


class _NobodyNext:
    """Comes after each test, so that what its module and folders have set up is torn down."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session

    def listchain(self) -> list[pytest.Session]:
        return [self._session]


class _Hunt:
    def __init__(self, session: pytest.Session, order: Path) -> None:
        self.items = {item.nodeid: item for item in session.items}
        self.nobody: Any = _NobodyNext(session)
        told = json.loads(order.read_text())
        self.names = set(told["mutants"])
        self.seconds_max: float = told["seconds_max"]
        self.killers: dict[str, str] = told["killers"]
        self.usage: list[dict[str, Any]] = told["usage"]
        self.results = Path(told["results"])
        self.kills: Counter[str] = Counter()

    def run(self) -> None:
        for mutant in MUTANTS:
            if mutant.name in self.names:
                self.one(mutant)

    def one(self, mutant: Mutant) -> None:
        path = OUTBOX / mutant.file
        original = path.read_text("utf-8")
        start = time.monotonic()
        killer = None
        for item in self.candidates(mutant):
            if time.monotonic() - start > self.seconds_max:
                break
            path.write_text(mutant.apply(read(mutant.file)), "utf-8")
            try:
                failed = self.fails(item)
            finally:
                path.write_text(original, "utf-8")
            # A test that fails of itself has killed nothing.
            if failed and not self.fails(item):
                killer = item.nodeid
                self.kills[killer] += 1
                break
        line = {
            "mutant": mutant.name,
            "killer": killer,
            "seconds": round(time.monotonic() - start, 1),
        }
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def fails(self, item: pytest.Item) -> bool:
        """Whether a test fails, with the statements as they are now."""
        forget()
        return any(r.failed for r in runtestprotocol(item, nextitem=self.nobody, log=False))

    def candidates(self, mutant: Mutant) -> list[pytest.Item]:
        """The one that killed it before, those named after it, those about statements, the rest."""
        statement = Path(mutant.file).stem
        known = self.killers.get(mutant.name)
        quick = sorted(
            (
                line["test"] != known,
                statement not in line["test"],
                "_of_statements.py" not in line["test"],
                -self.kills[line["test"]],
                len(line["statements"]),
                line["seconds"],
                line["test"],
            )
            for line in self.usage
            if statement in line["statements"]
        )
        names = [test for *_, test in quick]
        if known and known not in names:
            names.insert(0, known)
        return [self.items[name] for name in names if name in self.items]


def _not_this_process(code: int) -> None:
    raise RuntimeError(f"would have ended with {code}")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Instead of each test once."""
    if HUNT not in os.environ:
        return None
    assert "outbox-mutants-" in str(OUTBOX), "a hunt is for a copy"
    # A consumer that is told twice to stop ends its process, which is this session here.
    monkeypatched: Any = consumer
    monkeypatched.os = SimpleNamespace(getpid=os.getpid, _exit=_not_this_process)
    _Hunt(session, Path(os.environ[HUNT])).run()
    return True
