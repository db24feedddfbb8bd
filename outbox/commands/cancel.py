"""``outbox cancel``: jobs called off, where it is not too late."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox.cancel import cancel
from outbox.commands.answer import complain, print_json, say
from outbox.commands.options import JOB_ID_MAX, AsJson
from outbox.commands.session import operator

_WHY_NOT = {
    "running": "too late: a consumer is at work on it",
    "may_have_been_sent": "too late: a request for its key was begun and may have arrived",
    "held": "too late: its effect is held, it may have been sent; outbox effects resolve decides",
    "delivered": "too late: its effect is delivered",
    "dead": "it has ended already: dead",
    "unknown": "no such job (its transaction may have been rolled back)",
    "done_or_unknown": "it is done, or there is no such job",
}


def cancel_command(
    job_ids: Annotated[list[int], typer.Argument(metavar="JOB_ID...", min=1, max=JOB_ID_MAX)],
    json: AsJson = False,
) -> None:
    """Call jobs off for which no request was begun. Exit code 1 where it is too late for one."""
    with operator() as found:
        results = cancel(found, list(dict.fromkeys(job_ids)))
    refused = [result for result in results if result.refusal]
    for result in refused:
        why = _WHY_NOT.get(str(result.refusal), "it has just come back; try again")
        complain(f"job {result.job_id}: not cancelled: {why}")
    if json:
        print_json({
            "cancelled": len(results) - len(refused), "skipped": len(refused), "jobs": results,
        })  # fmt: skip
    else:
        for result in results:
            if not result.refusal:
                say(f"job {result.job_id}: cancelled")
    if refused:
        raise typer.Exit(1)
