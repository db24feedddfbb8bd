"""Test sessions in a copy of the checkout."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.mutants.mutant import Mutant, read
from tests.mutants.tree import copied, environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TESTS = ("tests/promises", "tests/outbox")
#: Some look at the text or the plan of a statement, and would tell any mutant apart by that; the
#: others never come near one.
_NOT = ("statements", "cost", "embedded", "payload", "lane", "evidence", "verdict", "outcome")
PYTEST = (
    sys.executable, "-m", "pytest", "-q", "--no-header",
    *(f"--ignore=tests/outbox/test_{name}.py" for name in _NOT),
)  # fmt: skip


def is_watched(path: Path) -> bool:
    """Whether the tests of a file take part."""
    return path.stem.removeprefix("test_") not in _NOT


def killer_among(tests: Sequence[str], mutant: Mutant | None) -> str:
    """The first of these tests that fails in a checkout with this mutant, or with none; empty
    where all of them pass.
    """
    with copied() as tree:
        if mutant is not None:
            (tree / "outbox" / mutant.file).write_text(mutant.apply(read(mutant.file)), "utf-8")
        done = subprocess.run(
            [*PYTEST, "-v", "--timeout=20", "--timeout-method=thread", "-x", "-n", "0",
             "-p", "no:randomly", *tests],
            cwd=tree, env=environment(tree), capture_output=True, text=True, check=False,
            start_new_session=True,
        )  # fmt: skip
    failed = [
        line.partition(" ")[2].partition(" - ")[0]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if failed or done.returncode == 0:
        return failed[0] if failed else ""
    # A test that does not come to an end takes its session along: it is the last that was begun.
    begun = [line.split(" ")[0] for line in done.stdout.splitlines() if ".py::" in line]
    assert begun, done.stdout + done.stderr
    return begun[-1]
