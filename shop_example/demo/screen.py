"""What the demo shows: its progress on stderr, its summaries on stdout."""

from __future__ import annotations

import dataclasses
import json
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shop_example.demo.judge import Verdict

#: Without a terminal a line now and then says that it goes on.
LINE_SECONDS = 3.0
#: A space at which no line is broken.
TIE = "\u00a0"
TITLES = {
    True: "A provider that replays keys",
    False: "A provider without keys, and EMAIL_UNKNOWN=hold",
}
CONCLUSIONS = {
    True: "Every order has its one e-mail, and nobody else has any.",
    False: "No order has two e-mails; each without a proven one is held, and nothing else is.",
}


@dataclass(frozen=True, slots=True)
class Traces:
    """Where to look further: the part's database and record, and an order that has seen much."""

    database_url: str
    record: Path
    effect_key: str


class Meter:
    """The progress of one part: bars on a terminal, else a line now and then."""

    def __init__(self, *, orders: int, kills: int, progress: Progress | None) -> None:
        self._totals = {"orders": orders, "kills": kills, "e-mails": orders}
        self._progress = progress
        self._bars = {
            name: progress.add_task(name, total=total)
            for name, total in self._totals.items()
            if progress is not None
        }
        self._next_line = time.monotonic() + LINE_SECONDS

    def show(self, *, orders: int, kills: int, emails: int) -> None:
        """Show the counts so far."""
        counts = {"orders": orders, "kills": kills, "e-mails": emails}
        if self._progress is not None:
            for name, count in counts.items():
                self._progress.update(self._bars[name], completed=count)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            say(", ".join(f"{name} {n}/{self._totals[name]}" for name, n in counts.items()))

    def say(self, line: str) -> None:
        """Say what happens now."""
        if self._progress is not None:
            self._progress.console.print(f"  {line}", style="dim", highlight=False)
        else:
            say(line)


def say(line: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()


@contextmanager
def meter(*, provider_keys: bool, orders: int, kills: int) -> Iterator[Meter]:
    """Show the progress of one part while it lasts."""
    console = Console(stderr=True)
    console.print(TITLES[provider_keys], style="bold", highlight=False)
    if not console.is_terminal:
        yield Meter(orders=orders, kills=kills, progress=None)
        return
    columns = (
        TextColumn("  {task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Meter(orders=orders, kills=kills, progress=progress)


def print_json(verdict: Verdict, traces: Traces) -> None:
    """One JSON object on one line."""
    facts = dataclasses.asdict(verdict)
    facts |= {"database_url": traces.database_url, "record": str(traces.record)}
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def print_summary(verdict: Verdict, traces: Traces) -> None:
    """The counts and what they mean, for a person."""
    lines = [
        TITLES[verdict.provider_keys],
        *(_row(label, count, note) for label, count, note in _rows(verdict)),
        "",
        *_conclusion(verdict),
        "",
        "  Look further:",
        f"    export OUTBOX_DATABASE_URL='{traces.database_url}'",
        "    outbox status",
        f"    outbox effects show {traces.effect_key}",
        "    outbox effects list --state held",
        f"""    grep '"key":"{traces.effect_key}"' '{traces.record}'""",
        "",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def _row(label: str, count: int, note: str) -> str:
    row = f"  {label:<34}{count:>6}   "
    if not note:
        return row.rstrip()
    indent = " " * len(row)
    return textwrap.fill(note, 100, initial_indent=row, subsequent_indent=indent).replace(TIE, " ")


def _rows(verdict: Verdict) -> Iterator[tuple[str, int, str]]:
    by_count = sorted(verdict.faults.items(), key=lambda fault: -fault[1])
    faults = ", ".join(f"{name}{TIE}{count}" for name, count in by_count)
    yield "orders committed", verdict.orders_committed, ""
    yield (
        "orders rolled back on purpose",
        verdict.orders_rolled_back,
        "after their job was enqueued",
    )
    yield "consumers killed", verdict.kills, "SIGKILL, at random moments"
    yield "requests that reached the provider", verdict.requests, ""
    yield "faults that they met", sum(verdict.faults.values()), faults
    yield "answers dropped or spoilt", verdict.answers_dropped, "after the provider had accepted"
    yield "e-mails accepted", verdict.emails_accepted, ""
    yield "orders held for a person", verdict.held, ""
    yield "orders with two e-mails or more", verdict.duplicates, ""
    yield "orders lost", verdict.lost, "neither an e-mail nor held"
    yield "surplus requests", verdict.surplus_requests, "explained by no fault, refusal or kill"
    yield "e-mails for rolled-back orders", verdict.sent_for_rolled_back, ""
    yield "holds missing", verdict.missing_holds, "nobody was told of the e-mail, yet not held"
    yield "holds needless", verdict.needless_holds, "held without need or reason"


def _conclusion(verdict: Verdict) -> Iterator[str]:
    if verdict.clean:
        yield f"  {CONCLUSIONS[verdict.provider_keys]}"
        return
    shown = verdict.problems[:10]
    yield from (f"  WRONG: {problem}" for problem in shown)
    if len(verdict.problems) > len(shown):
        yield f"  WRONG: and {len(verdict.problems) - len(shown)} more"
