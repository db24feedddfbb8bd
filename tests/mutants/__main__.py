"""``python -m tests.mutants [NAME ...]``: each mutant against the tests, and docs/mutants.md.

A name picks the mutants that contain it (``claim_jobs``, ``"claim_jobs: no floor"``); the others'
rows stay as they are in the document.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.mutants import report
from tests.mutants.guards import MUTANTS
from tests.mutants.hunt import HUNT
from tests.mutants.mutant import Mutant
from tests.mutants.session import PYTEST, TESTS, is_watched, killer_among
from tests.mutants.tree import ROOT, copied, environment
from tests.mutants.usage import USAGE

if TYPE_CHECKING:
    from collections.abc import Iterator

_SESSIONS = 2
#: Beyond the time for one mutant; a session that is silent for longer does not come back.
_SILENCE_SECONDS_MAX = 60


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 -- the answer on the terminal


def usage() -> list[dict[str, object]]:
    """Which tests use which statements: each file of tests runs once, and again when it changes."""
    remembered = ROOT / ".pytest_cache" / "mutants-usage.json"
    known = json.loads(remembered.read_text()) if remembered.exists() else {}
    files = {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()
        for part in TESTS
        for path in (ROOT / part).rglob("test_*.py")
        if is_watched(path)
    }
    changed = [name for name, hash_ in files.items() if known.get(name, {}).get("hash") != hash_]
    if changed:
        _say(f"running {len(changed)} files of tests once, to learn which statements each uses")
        lines = _watched(changed)
        known |= {name: {"hash": files[name], "tests": []} for name in changed}
        for line in lines:
            known[line["test"].partition("::")[0]]["tests"].append(line)
        remembered.parent.mkdir(exist_ok=True)
        remembered.write_text(json.dumps(known))
    return [line for name in files for line in known[name]["tests"]]


def _watched(names: list[str]) -> list[dict[str, str]]:
    with copied() as tree, tempfile.TemporaryDirectory() as notes:
        subprocess.run(
            [*PYTEST, "-n", "2", "-p", "tests.mutants.usage", *names],
            cwd=tree, env=environment(tree, **{USAGE: notes}), check=False,
        )  # fmt: skip
        return [
            json.loads(line)
            for file in Path(notes).iterdir()
            for line in file.read_text().splitlines()
        ]


def hunt(mutants: list[Mutant], seconds_max: float, known: dict[str, str]) -> Iterator[report.Row]:
    """Hunt the mutants of statements in sessions side by side; each row as it comes."""
    used = usage()
    with ExitStack() as stack:
        sessions = []
        for number in range(_SESSIONS):
            tree = stack.enter_context(copied())
            results = tree / "results.jsonl"
            results.touch()
            order = tree / "order.json"
            order.write_text(json.dumps({
                "mutants": [mutant.name for mutant in mutants[number::_SESSIONS]],
                "seconds_max": seconds_max,
                "killers": known,
                "usage": used,
                "results": str(results),
            }))  # fmt: skip
            command = [
                *PYTEST,
                "--timeout=20",
                "-p",
                "no:randomly",
                "-p",
                "tests.mutants.hunt",
                *TESTS,
            ]
            session = subprocess.Popen(
                command, cwd=tree, env=environment(tree, **{HUNT: str(order)}),
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            sessions.append((session, results))
        seen: set[str] = set()
        heard = dict.fromkeys(range(_SESSIONS), time.monotonic())
        while True:
            ended = all(session.poll() is not None for session, _ in sessions)
            for number, (session, results) in enumerate(sessions):
                for line in results.read_text().splitlines():
                    if line not in seen:
                        seen.add(line)
                        heard[number] = time.monotonic()
                        row = json.loads(line)
                        yield report.Row(row["mutant"], row["killer"] or "", row["seconds"])
                if time.monotonic() - heard[number] > seconds_max + _SILENCE_SECONDS_MAX:
                    session.kill()
            if ended:
                return
            time.sleep(1)


def alone(mutant: Mutant, known: str | None) -> report.Row:
    """A mutant of Python or of the schema: what killed it before, what is likely to, all tests."""
    start = time.monotonic()
    killer = ""
    for tests in ([known] if known else [], ["tests/outbox/test_schema_guards.py"], TESTS):
        killer = killer or (killer_among(tests, mutant) if tests else "")
    # A test that fails of itself has killed nothing.
    if killer and killer_among([killer], None):
        killer = ""
    return report.Row(mutant.name, killer, round(time.monotonic() - start, 1))


def main(arguments: list[str]) -> int:
    """Hunt, write the document, and say by the exit code whether one survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of mutants; all by default")
    parser.add_argument(
        "--survivors", action="store_true", help="only those that no test has killed yet"
    )
    parser.add_argument("--seconds", type=float, default=120, help="to spend on one at most")
    given = parser.parse_args(arguments)
    rows = {row.mutant: row for row in report.read()}
    mutants = [
        mutant for mutant in MUTANTS
        if not mutant.equivalent
        and (not given.names or any(name in mutant.name for name in given.names))
        and not (given.survivors and mutant.name in rows and rows[mutant.name].killer)
    ]  # fmt: skip
    known = {row.mutant: row.killer for row in rows.values() if row.killer}
    found = {}
    for row in _all(mutants, given.seconds, known):
        _say(f"{'killed  ' if row.killer else 'SURVIVED'}  {row.mutant}  {row.killer}")
        found[row.mutant] = row
        # Written at once, so that a run that is broken off has not been for nothing.
        report.write(rows | found)
    return 0 if len(found) == len(mutants) and all(row.killer for row in found.values()) else 1


def _all(mutants: list[Mutant], seconds_max: float, known: dict[str, str]) -> Iterator[report.Row]:
    left = [mutant for mutant in mutants if mutant.file.startswith("sql/")]
    others = [mutant for mutant in mutants if mutant not in left]
    while left:
        done = set()
        for row in hunt(left, seconds_max, known):
            done.add(row.mutant)
            yield row
        left = [mutant for mutant in left if mutant.name not in done]
        if left:
            # It has ended or stopped its session: let it do so with one of its own.
            others.append(left.pop(0))
    for mutant in others:
        yield alone(mutant, known.get(mutant.name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
