"""How soon the machine finds each planted bug: ``python -m tests.machine.score [NAME ...]``.

Writes docs/planted-bugs.md. A rig that finds nothing in these would find nothing anywhere.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hypothesis import Phase, seed
from hypothesis.stateful import run_state_machine_as_test

from tests.databases import databases
from tests.machine.bench import Bench
from tests.machine.plants import DECISIONS, STATEMENTS, planted
from tests.machine.test_machine import machine, profile

PAGE = Path(__file__).parents[2] / "docs" / "planted-bugs.md"
SEEDS = range(1, 4)
HISTORIES_OF_A_SEED = 40

_HEAD = """\
# Planted bugs

Written by `python -m tests.machine.score`; commit {commit}. Each bug was put into the shipped
statements or decisions, one at a time, and the state machine of
[tests/machine](../tests/machine/test_machine.py) played histories of 50 steps against it,
from three fixed seeds. What it has not found within them is rare, and left to tests of
their own: the guards of all statements are mutants, too ([mutants.md](mutants.md)).

| planted bug | found after | as |
|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Find:
    """What became of one planted bug; ``word`` is ``None`` where it was not found."""

    name: str
    histories: int
    word: str | None

    def as_row(self) -> str:
        """A line of the table."""
        if self.word is None:
            return f"| {self.name} | *not within {self.histories} histories* | |"
        return f"| {self.name} | {self.histories} histories | {self.word} |"


def find(url: str, name: str) -> Find:
    """Play until the machine breaks, or has had its histories."""
    histories, word = 0, None
    for number in SEEDS:
        with planted(name), Bench.open(url) as bench:
            try:
                run_state_machine_as_test(
                    seed(number)(machine(bench)),
                    settings=profile(HISTORIES_OF_A_SEED, Phase.generate),
                )
            except Exception as error:  # noqa: BLE001 -- whatever it breaks by is the find
                word = str(error).strip().splitlines()[0][:100].replace("|", "/")
            histories += bench.histories
        if word is not None:
            break
    return Find(name, histories, word)


def main() -> int:
    """Find all of them, or those named, and write the page."""
    names = sys.argv[1:] or [*STATEMENTS, *DECISIONS]
    finds = []
    with databases() as made:
        url = made.create_migrated()
        for name in names:
            started = time.monotonic()
            finds.append(find(url, name))
            sys.stdout.write(f"{finds[-1].as_row()} {time.monotonic() - started:.0f} s\n")
            sys.stdout.flush()
        made.drop(url)
    finds.sort(key=lambda one: (one.word is None, one.histories))
    head = _HEAD.format(commit=_commit())
    found = sum(one.word is not None for one in finds)
    rows = "\n".join(one.as_row() for one in finds)
    PAGE.write_text(f"{head}{rows}\n\nFound: {found} of {len(finds)}.\n")
    return 0


def _commit() -> str:
    words = ["git", "-C", str(PAGE.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
