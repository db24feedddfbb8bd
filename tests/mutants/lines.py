"""Which lines of a statement are guards, told by the words in them."""

from __future__ import annotations

import re

from tests.mutants.mutant import OUTBOX, Mutant, read

#: What decides which rows are touched, when, in which order, by whom and how often.
_GUARD = re.compile(
    r"\b(WHERE|AND|OR|NOT|WHEN|HAVING|FOR (NO KEY )?(UPDATE|SHARE)|SKIP LOCKED|LIMIT|OFFSET|"
    r"ORDER BY|DISTINCT|ON CONFLICT|IN \(|IS NULL|clock_timestamp|coalesce|lease_until|"
    r"claimed_by =|claim_version =|requests_sent|MATERIALIZED|pg_try_advisory)\b"
)
#: No guard: a list of columns, a row found by the key under which it was just picked, the
#: order of an answer.
_PLAIN = re.compile(
    r"WHERE \w+\.(id|effect_key) = \w+\.(id|effect_key|job_id)"
    r"|ORDER BY judged\.id"
    r"|(?!(WHERE|AND|OR|WHEN|LIMIT|ORDER|FOR|SELECT DISTINCT) )[\w., ]+"
)


def guards(file: str) -> list[tuple[int, str]]:
    """The guards of a file: where each line begins, and the line."""
    found, start = [], 0
    for line in read(file).splitlines(keepends=True):
        text = line.strip()
        if _GUARD.search(text) and not _PLAIN.fullmatch(text):
            found.append((start + line.index(text), text))
        start += len(line)
    return found


def untouched(file: str, mutants: list[Mutant]) -> list[str]:
    """The guards that no mutant changes."""
    source = read(file)
    spans = [span for mutant in mutants if mutant.file == file for span in mutant.spans(source)]
    return [
        line
        for start, line in guards(file)
        if not any(span.start < start + len(line) and span.end > start for span in spans)
    ]


def writing() -> list[str]:
    """The statements that write or lock, and those that a begin or a recovery goes by."""
    names = [path.relative_to(OUTBOX).as_posix() for path in sorted(OUTBOX.glob("sql/*.sql"))]
    words = re.compile(r"\b(INSERT|UPDATE|DELETE|FOR SHARE)\b")
    also = {"sql/read_effects.sql", "sql/find_crashed_job.sql"}
    return [name for name in names if name in also or words.search(read(name))]
