"""``outbox jobs``: what waits, what runs, what ended and why."""

from __future__ import annotations

import json as json_text
from typing import Annotated

import typer

from outbox.commands.answer import (
    Verbatim,
    as_mapping,
    print_facts,
    print_json,
    print_json_lines,
    print_table,
    say,
)
from outbox.commands.effects import effect_line
from outbox.commands.options import JSON_PAGE, PAGE, AsJson, JobId, JobState, PageLimit, Topic
from outbox.commands.session import operator
from outbox.commands.wording import moment
from outbox.errors import OutboxError
from outbox.inspection import (
    JOB_STATES,
    EffectRecord,
    JobRecord,
    find_delivered,
    list_jobs,
    read_effects,
    read_jobs,
    read_payload,
)
from outbox.legible import legible
from outbox.operator import Operator

jobs = typer.Typer(
    invoke_without_command=True, rich_markup_mode=None, help="List jobs, or show one of them."
)


@jobs.callback()
def jobs_command(
    *,
    context: typer.Context,
    state: Annotated[
        JobState | None,
        typer.Option(
            help="Only in this state. Unset: all but done; all and done read the whole ledger."
        ),
    ] = None,
    topic: Topic = None,
    limit: PageLimit = None,
    after: Annotated[int, typer.Option(min=0, metavar="JOB_ID", help="Only ids above it.")] = 0,
    json: AsJson = False,
) -> None:
    """List jobs by id, with what they wait for or why they ended; or show one of them."""
    if context.invoked_subcommand is not None:
        return
    states = _states(state)
    with operator() as found:
        if json and limit is None:
            while page := list_jobs(
                found, states=states, topic=topic, after=after, limit=JSON_PAGE
            ):
                print_json_lines(page)
                after = page[-1].id
            return
        shown = limit or PAGE
        page = list_jobs(found, states=states, topic=topic, after=after, limit=shown)
    if json:
        print_json_lines(page)
        return
    print_table(
        ("id", "state", "topic", "key", "tries", "when", "reason"), [_row(job) for job in page]
    )
    if not page:
        say("no such jobs")
    elif len(page) == shown:
        say(f"there may be more: --after {page[-1].id}")


@jobs.command("show")
def show_command(
    job_id: JobId,
    payload: Annotated[
        bool, typer.Option("--payload", help="Show the payload too, which may hold addresses.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Show one job, and what the ledger says of its effect."""
    with operator() as found:
        job, effect = _find(found, job_id)
        text = read_payload(found, job_id) if payload else None
    if json:
        shown = {"payload": _payload(text)} if payload else {}
        print_json({**as_mapping(job), "effect": effect, **shown})
        return
    print_facts(_facts(job, effect))
    if payload:
        typer.echo(legible(text) if text else "the payload is gone (delivered, or past retention)")


def _states(state: JobState | None) -> tuple[str, ...]:
    if state is None:
        return tuple(each for each in JOB_STATES if each != "done")
    return JOB_STATES if state == "all" else (str(state),)


def _find(found: Operator, job_id: int) -> tuple[JobRecord, EffectRecord | None]:
    """Return the job and its effect.

    Raises:
        OutboxError: there is no such job.
    """
    jobs_found = read_jobs(found, [job_id])
    if jobs_found:
        effects = read_effects(found, [jobs_found[0].effect_key])
        return jobs_found[0], effects[0] if effects else None
    if key := find_delivered(found, [job_id]).get(job_id):
        effect = read_effects(found, [key])[0]
        return _delivered(effect), effect
    raise OutboxError(f"job {job_id}: no such job (its transaction may have been rolled back)")


def _delivered(effect: EffectRecord) -> JobRecord:
    """A job that delivered its effect has no row of its own any more."""
    return JobRecord(
        effect.job_id, "done", effect.topic, effect.effect_key, None, None, None, None, None, None,
        effect.attempted_by, None, effect.settled_at, "delivered", effect.detail,
    )  # fmt: skip


def _payload(text: str | None) -> Verbatim | None:
    return None if text is None else Verbatim(json_text.loads(text))


def _row(job: JobRecord) -> tuple[object, ...]:
    reason = ": ".join(part for part in (job.reason, job.detail) if part)
    return job.id, job.state, job.topic, job.effect_key, job.attempts, _when(job), reason


def _when(job: JobRecord) -> str:
    """The moment that matters in the job's state."""
    match job.state:
        case "scheduled" | "backing_off":
            return f"from {moment(job.available_at)}"
        case "running":
            return f"until {moment(job.lease_until)}"
        case "dead" | "cancelled" | "done":
            return f"ended {moment(job.ended_at)}"
        case _:
            return f"since {moment(job.available_at or job.enqueued_at)}"


def _facts(job: JobRecord, effect: EffectRecord | None) -> dict[str, str]:
    return {
        "job": str(job.id),
        "state": f"{job.state} ({_when(job)})",
        "reason": ": ".join(part for part in (job.reason, job.detail) if part),
        "topic": job.topic,
        "ordering key": job.ordering_key or "",
        "enqueued": moment(job.enqueued_at),
        "expires": moment(job.expires_at),
        "tries": "" if job.attempts is None else str(job.attempts),
        "claimed by": job.claimed_by or "",
        "effect": job.effect_key,
        "ledger": effect_line(effect) if effect else "no request was ever begun for this key",
    }
