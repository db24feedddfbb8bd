"""Arguments and options that several commands take, and how their values are read."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated

import typer

_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
JOB_ID_MAX = 2**63 - 1


def parse_moment(value: str) -> datetime:
    """Read ``2026-01-31T08:00Z`` (UTC where no zone is given) or an age such as ``90m``."""
    if match := _AGE.fullmatch(value.strip()):
        return datetime.now(UTC) - timedelta(**{_UNITS[match[2]]: int(match[1])})
    try:
        found = datetime.fromisoformat(value.strip())
    except ValueError:
        raise typer.BadParameter(
            "not a time; it looks like 2026-01-31T08:00:00Z, or an age such as 90m, 12h, 7d"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def parse_key(value: str) -> str:
    """Refuse what can't be an effect key."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", value):
        raise typer.BadParameter("not an effect key: 1 to 200 of A-Z a-z 0-9 . _ -")
    return value


def parse_text(value: str) -> str:
    """Refuse what the database can't hold."""
    if not value.isprintable():
        raise typer.BadParameter("holds characters that can't be printed")
    return value


class JobState(StrEnum):
    """States for people, and all of them."""

    READY = "ready"
    SCHEDULED = "scheduled"
    BACKING_OFF = "backing_off"
    RUNNING = "running"
    BLOCKED = "blocked"
    HELD = "held"
    DEAD = "dead"
    CANCELLED = "cancelled"
    DONE = "done"
    ALL = "all"


class EndedState(StrEnum):
    """States from which a job can come back."""

    DEAD = "dead"
    CANCELLED = "cancelled"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")]
Key = Annotated[str, typer.Argument(metavar="KEY", parser=parse_key, help="The effect's key.")]
JobId = Annotated[int, typer.Argument(metavar="JOB_ID", min=1, max=JOB_ID_MAX)]
JobIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="[JOB_ID...]", min=1, max=JOB_ID_MAX, show_default=False),
]
Topic = Annotated[
    str | None, typer.Option(metavar="TOPIC", parser=parse_text, help="Only of this topic.")
]
#: How many rows a list shows a person, unless told; as JSON lines it gives all, page by page.
PAGE = 50
JSON_PAGE = 1000
PageLimit = Annotated[
    int | None,
    typer.Option(min=1, max=1_000_000, help=f"At most so many; unset: {PAGE}, or all with --json."),
]
Limit = Annotated[int, typer.Option(min=1, max=1_000_000, help="At most so many.")]
