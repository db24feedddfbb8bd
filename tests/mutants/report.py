"""docs/mutants.md: what became of each mutant, survivors first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from tests.mutants.guards import MUTANTS
from tests.mutants.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENT = ROOT / "docs" / "mutants.md"
BEGIN, END = "<!-- mutants: begin -->\n", "<!-- mutants: end -->\n"
_ROW = re.compile(r"\| (.+?) \| `(.*?)` \| ([\d.]+) \|")
_NONE = "survived"


class Row(NamedTuple):
    """A mutant, the test that killed it (empty: it lives), and how long that took."""

    mutant: str
    killer: str
    seconds: float


def read() -> list[Row]:
    """The rows of the document."""
    found = _ROW.findall(DOCUMENT.read_text("utf-8")) if DOCUMENT.exists() else []
    return [
        Row(mutant, "" if killer == _NONE else killer, float(seconds))
        for mutant, killer, seconds in found
    ]


def write(rows: Mapping[str, Row]) -> None:
    """Write the table between its marks; the rest of the document is written by hand."""
    text = DOCUMENT.read_text("utf-8") if DOCUMENT.exists() else f"# Mutants\n\n{BEGIN}{END}"
    before, _, rest = text.partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2], "utf-8")


def table(rows: Mapping[str, Row]) -> str:
    """The figures, each mutant that a test has to kill, and the argument for each of the others."""
    mutants = [mutant for mutant in MUTANTS if not mutant.equivalent]
    run = sorted(
        (rows[m.name] for m in mutants if m.name in rows),
        key=lambda row: (bool(row.killer), row.mutant),
    )
    equivalents = [mutant for mutant in MUTANTS if mutant.equivalent]
    killed = sum(bool(row.killer) for row in run)
    figures = (
        f"{len(MUTANTS)} mutants: {killed} killed, {len(equivalents)} equivalent, "
        f"{len(run) - killed} survived, {len(mutants) - len(run)} not run yet."
    )
    lines = [
        figures,
        "",
        "| mutant | killed by | seconds |",
        "|---|---|---|",
        *(f"| {row.mutant} | `{row.killer or _NONE}` | {row.seconds:g} |" for row in run),
        "",
        "## Equivalent mutants",
        "",
        *(f"- **{mutant.name}**: {mutant.equivalent}" for mutant in equivalents),
        "",
    ]
    return "\n".join(lines)
