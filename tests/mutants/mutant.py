"""A mutant: one guard of the product removed or changed, and nothing else."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

OUTBOX = Path(__file__).parents[2] / "outbox"
_COMMENT = re.compile(r"^[ \t]*--.*\n", re.MULTILINE)


class Span(NamedTuple):
    """Where a fragment stands in a source."""

    start: int
    end: int


class Edit:
    """Texts and what they become. Each must stand in the source once, however it is broken up."""

    def __init__(self, *texts: str, equivalent: str = "") -> None:
        self.pairs = tuple(zip(texts[::2], texts[1::2], strict=True))
        self.equivalent = " ".join(equivalent.split())


def same(why: str, *texts: str) -> Edit:
    """A change that can't make a difference, with the argument for it."""
    return Edit(*texts, equivalent=why)


@dataclass(frozen=True, slots=True)
class Mutant:
    """An edit of a file below ``outbox/``."""

    name: str
    file: str
    edit: Edit

    @property
    def equivalent(self) -> str:
        """Why it can't be told from the original; empty for one that a test has to kill."""
        return self.edit.equivalent

    def spans(self, source: str) -> list[Span]:
        """Where it changes the source.

        Raises:
            LookupError: a text is not there, or more than once.
        """
        spans = []
        for old, _ in self.edit.pairs:
            found = list(re.finditer(r"\s+".join(map(re.escape, old.split())), source))
            if len(found) != 1:
                raise LookupError(f"{self.name}: {len(found)} times in {self.file}: {old}")
            spans.append(Span(*found[0].span()))
        return spans

    def apply(self, source: str) -> str:
        """The changed source."""
        changes = zip(self.spans(source), (new for _, new in self.edit.pairs), strict=True)
        for span, new in sorted(changes, reverse=True):
            source = source[: span.start] + new + source[span.end :]
        return source


def read(file: str) -> str:
    """A file's text as it is mutated: SQL without its comments, which hold no guard."""
    text = (OUTBOX / file).read_text("utf-8")
    return _COMMENT.sub("", text) if file.endswith(".sql") else text


def of(file: str, edits: dict[str, Edit]) -> list[Mutant]:
    """The mutants of one file, each called after it."""
    return [Mutant(f"{Path(file).stem}: {name}", file, edit) for name, edit in edits.items()]


def of_sql(statement: str, edits: dict[str, Edit]) -> list[Mutant]:
    """The mutants of one statement."""
    return of(f"sql/{statement}.sql", edits)
