"""``outbox retry``: ended jobs brought back."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from outbox.commands.answer import complain, print_json, say
from outbox.commands.options import (
    AsJson,
    DryRun,
    EndedState,
    JobIds,
    Limit,
    Topic,
    parse_moment,
    parse_text,
)
from outbox.commands.session import WrongUse, answering, operator
from outbox.retry import Permission, Retried, ended_jobs, retry

_WHY_NOT = {
    "duplicate": "ended as a duplicate of a delivered one",
    "payload_pruned": "its payload is gone (retention); enqueue it anew",
    "expired": "past its expires_at; --ignore-expiry brings it back all the same",
    "delivered": "its effect is delivered",
    "held": "its effect is held; outbox effects resolve decides for all its jobs",
    "may_have_been_sent": "its effect was given up and may have been sent; --send-again "
    "brings it back all the same, which may make a second one",
    "done": "it is done",
    "unknown": "no such job (its transaction may have been rolled back)",
    "done_or_unknown": "it is done, or there is no such job",
}
#: So many ids of one reason are named.
_NAMED = 5


def retry_command(
    *,
    job_ids: JobIds = None,
    everything: Annotated[bool, typer.Option("--all", help="All dead jobs.")] = False,
    topic: Topic = None,
    reason: Annotated[
        str | None,
        typer.Option(
            metavar="REASON", parser=parse_text, help="Only if they ended for this reason."
        ),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only if they ended before: a time, or an age (2h)."),
    ] = None,
    state: Annotated[EndedState, typer.Option(help="In bulk: how they ended.")] = EndedState.DEAD,
    limit: Limit = 10_000,
    send_again: Annotated[
        bool,
        typer.Option(
            "--send-again", help="Even if given up and maybe sent; this may make a second one."
        ),
    ] = False,
    ignore_expiry: Annotated[
        bool, typer.Option("--ignore-expiry", help="Even past their expires_at, which is cleared.")
    ] = False,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Bring dead or cancelled jobs back, under their old id and key, their attempts counted anew.

    What is live or done is left alone. Exit code 1 where a named job is not brought back.
    """
    named = list(dict.fromkeys(job_ids or ()))
    with answering():
        _check_use(named=bool(named), bulk=everything or any((topic, reason, before)))
    until = None if before is None else parse_moment(before)
    with operator() as found:
        ids = named or ended_jobs(
            found, ended_as=state, topic=topic, reason=reason, before=until, limit=limit
        )
        results = retry(found, ids, Permission(send_again, ignore_expiry), dry_run=dry_run)
    _answer(results, dry_run=dry_run, json=json)
    if named and any(result.refusal for result in results):
        raise typer.Exit(1)


def _check_use(*, named: bool, bulk: bool) -> None:
    if named and bulk:
        raise WrongUse("job ids and --all, --topic, --reason or --before exclude each other")
    if not named and not bulk:
        raise WrongUse(
            "name job ids, or choose by --topic, --reason, --before; --all for all dead jobs"
        )


def _answer(results: list[Retried], *, dry_run: bool, json: bool) -> None:
    reasons = Counter(result.refusal for result in results if result.refusal)
    skipped = reasons.total()
    for line in _remarks(results):
        complain(line)
    if json:
        print_json({
            "dry_run": dry_run, "retried": len(results) - skipped, "skipped": skipped,
            "reasons": reasons, "jobs": results,
        })  # fmt: skip
    else:
        retried = "would retry" if dry_run else "retried"
        say(f"{retried} {len(results) - skipped}, skipped {skipped}")


def _remarks(results: list[Retried]) -> list[str]:
    """A line for each reason why jobs are skipped, and one for those that will fail again."""
    refused: dict[str, list[int]] = {}
    for result in results:
        if result.refusal:
            refused.setdefault(result.refusal, []).append(result.job_id)
    lines = [
        f"not retried: {_jobs(ids)}: {_WHY_NOT.get(refusal, f'live already: {refusal}')}"
        for refusal, ids in refused.items()
    ]
    if ids := [each.job_id for each in results if each.conflicts and not each.refusal]:
        why = "the key stands for another effect, so this ends in effect_key_conflict again"
        lines.append(f"{_jobs(ids)}: {why}")
    return lines


def _jobs(ids: list[int]) -> str:
    more = f" and {len(ids) - _NAMED} more" if len(ids) > _NAMED else ""
    return ("job " if len(ids) == 1 else "jobs ") + ", ".join(map(str, ids[:_NAMED])) + more
