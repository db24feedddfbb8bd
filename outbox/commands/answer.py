"""How answers are written: JSON for programs, tables for people, one line for what went wrong."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outbox.commands.wording import masked
from outbox.legible import legible

#: Where the output is no terminal nothing is folded: a line per row for whatever reads it.
_WIDTH_OF_A_FILE = 4000


@dataclasses.dataclass(frozen=True, slots=True)
class Verbatim:
    """A value of JSON that is printed as it is, addresses and all: somebody asked for it."""

    value: Any


def as_json(record: object) -> str:
    """Return a record (dataclass or mapping) as one line of JSON; times in ISO-8601, UTC."""
    text = json.dumps(_plain(record), ensure_ascii=True, separators=(", ", ": "))
    # The one control character that JSON lets through.
    return text.replace("\x7f", "\\u007f")


def as_mapping(record: Any) -> dict[str, object]:
    """Return a dataclass's fields by name."""
    return {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}


def print_json(record: object) -> None:
    """Print one object."""
    sys.stdout.write(as_json(record) + "\n")


def print_json_lines(records: Iterable[object]) -> None:
    """Print an object a line."""
    for record in records:
        print_json(record)


def say(line: str) -> None:
    """Print one line for a person, foreign text in it made legible."""
    sys.stdout.write(legible(masked(line)) + "\n")


def complain(line: str) -> None:
    """Print one line about what went wrong to the standard error stream."""
    for each in line.splitlines() or [""]:
        sys.stderr.write(f"outbox: {legible(masked(each))}\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table for people; an empty one prints nothing."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    if table.row_count:
        _console().print(table)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print names and values one below the other; those without a value are left out."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            table.add_row(Text(name), _cell(value))
    _console().print(table)


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout, width=None if terminal else _WIDTH_OF_A_FILE, highlight=False, emoji=False
    )


def _cell(value: object) -> Text:
    return Text(legible(masked("" if value is None else str(value))))


def _plain(value: object) -> Any:
    if isinstance(value, Verbatim):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(as_mapping(value))
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return masked(value) if isinstance(value, str) else value
