"""``outbox migrate, status, doctor, prune``: the database as a whole."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from outbox import schema
from outbox.commands.answer import print_json, print_table, say
from outbox.commands.options import AsJson, DryRun
from outbox.commands.session import answering, database_url, operator
from outbox.commands.wording import duration
from outbox.doctor import Check, Verdict, examine
from outbox.errors import OutboxError
from outbox.operator import ANSWER_SECONDS, explained
from outbox.retention import prunable, prune
from outbox.status import Counts, Status, status

_COLUMNS = (
    "ready", "scheduled", "backing_off", "running", "blocked", "held", "dead", "cancelled",
    "unserved",
)  # fmt: skip


def migrate_command(json: AsJson = False) -> None:
    """Bring the database's schema to this version; again, there is nothing to do."""
    with answering(), explained():
        applied = schema.migrate(database_url())
    version = schema.migrations()[-1].version
    if json:
        steps = [{"version": step.version, "name": step.name} for step in applied]
        print_json({"applied": steps, "version": version})
        return
    for step in applied:
        say(f"applied {step.version:04d} {step.name}")
    if not applied:
        say(f"nothing to do: the schema has version {version}")


def status_command(
    json: AsJson = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Give up after so many seconds.")
    ] = ANSWER_SECONDS,
) -> None:
    """Count the jobs by state, and say who works on them.

    Done jobs are not counted: the ledger of effects is their record.
    """
    with operator() as found:
        answer = status(found, timeout)
    if json:
        print_json(_flat(answer))
        return
    rows = [*answer.topics.items(), ("all topics", answer.total)]
    print_table(
        ("topic", *(name.replace("_", " ") for name in _COLUMNS), "oldest ready"),
        [(name, *_numbers(counts), duration(counts.oldest_ready_seconds)) for name, counts in rows],
    )
    for line in _advice(answer):
        say(line)


def doctor_command(json: AsJson = False) -> None:
    """Look the database over: what is wrong, and what to do about it.

    Exit code 1 where a check fails; a warning is none.
    """
    checks = list(_checks())
    failed = any(check.verdict is Verdict.FAIL for check in checks)
    if json:
        print_json({"ok": not failed, "checks": checks})
    else:
        print_table(("", "check", "finding"), [(c.verdict, c.name, c.message) for c in checks])
    raise typer.Exit(1 if failed else 0)


def prune_command(
    ended_before_days: Annotated[
        float,
        typer.Option(min=0, max=36_500, metavar="DAYS", help="Only jobs that ended so long ago."),
    ] = 30,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Clear the payloads of jobs that ended long ago. Such a job can't be retried any more.

    Its row stays, and so do all keys of the ledger: what was sent once is never sent again.
    """
    with operator() as found:
        if dry_run:
            cleared = prunable(found, ended_before_days)
        else:
            cleared = sum(prune(found, ended_before_days))
    if json:
        print_json({"payloads_cleared": cleared, "dry_run": dry_run})
    else:
        did = "would clear" if dry_run else "cleared"
        say(f"{did} {cleared} payloads of jobs that ended over {ended_before_days:g} days ago")


def _checks() -> list[Check]:
    try:
        url = database_url()
    except OutboxError as error:
        return [Check("settings", Verdict.FAIL, line) for line in str(error).splitlines()]
    return [Check("settings", Verdict.OK, "make sense"), *examine(url)]


def _numbers(counts: Counts) -> list[int]:
    return [getattr(counts, name) for name in _COLUMNS]


def _flat(answer: Status) -> dict[str, object]:
    return {
        **dataclasses.asdict(answer.total),
        "held_effects": answer.held_effects,
        "oldest_held_seconds": answer.oldest_held_seconds,
        "consumers": answer.consumers,
        "topics": answer.topics,
    }


def _advice(answer: Status) -> list[str]:
    total = answer.total
    lines = [f"consumers seen lately: {len(answer.consumers)}"]
    if total.unserved:
        lines.append(f"unserved: {total.unserved} ready jobs have topics that no consumer serves")
    if answer.held_effects:
        silent = duration(answer.oldest_held_seconds)
        lines.append(
            f"held: {answer.held_effects} effects, the oldest silent for {silent}; "
            "see: outbox effects list --state held"
        )
    if total.dead:
        since = duration(total.oldest_dead_seconds)
        lines.append(
            f"dead: {total.dead} jobs, the oldest for {since}; see: outbox jobs --state dead"
        )
    return lines
