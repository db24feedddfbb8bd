"""``outbox effects resolve``: a person's decision where the ledger doesn't know."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox.commands.answer import complain, print_json, say
from outbox.commands.options import (
    AsJson,
    DryRun,
    Limit,
    Topic,
    parse_key,
    parse_moment,
    parse_text,
)
from outbox.commands.session import WrongUse, answering, operator
from outbox.operator import Operator
from outbox.resolve import Resolution, Resolved, held_effects, preview, resolve

_DONE = {
    Resolution.DELIVERED: "marked as delivered",
    Resolution.SEND_AGAIN: "goes out again, with the same key: this may make a second one",
    Resolution.GIVE_UP: "given up; its jobs are dead",
}


def resolve_command(
    *,
    effect_key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", parser=parse_key, help="One held effect.")
    ] = None,
    delivered: Annotated[
        bool, typer.Option("--delivered", help="It was sent: the provider's records prove it.")
    ] = False,
    send_again: Annotated[
        bool, typer.Option("--send-again", help="Send it again; this may make a second one.")
    ] = False,
    give_up: Annotated[
        bool, typer.Option("--give-up", help="Don't send it, and don't ask any more.")
    ] = False,
    message_id: Annotated[
        str | None,
        typer.Option(metavar="ID", parser=parse_text, help="With --delivered: the provider's id."),
    ] = None,
    topic: Topic = None,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only if the last request began before: a time, or an age (2h)."
        ),
    ] = None,
    limit: Limit = 1000,
    dry_run: DryRun = False,
    json: AsJson = False,
) -> None:
    """Decide about held effects: one by its key, or all of a topic or of a time.

    All jobs that wait beside an effect are settled with it. An effect that is not held is left
    alone: exit code 1 where it was named.
    """
    with answering():
        chosen = dict(zip(Resolution, (delivered, send_again, give_up), strict=True))
        resolution = _the_one(chosen)
        _check_use(effect_key, resolution, message_id, bulk=bool(topic or before))
    until = None if before is None else parse_moment(before)
    with operator() as found:
        if effect_key is not None:
            keys = [effect_key]
        else:
            held = held_effects(found, topic=topic, before=until, limit=limit)
            keys = [effect.effect_key for effect in held]
        results = _decide(found, keys, resolution, message_id, dry_run=dry_run)
    _answer(results, resolution, dry_run=dry_run, json=json)
    if effect_key is not None and not results[0].done:
        raise typer.Exit(1)


def _the_one(chosen: dict[Resolution, bool]) -> Resolution:
    found = [resolution for resolution, is_chosen in chosen.items() if is_chosen]
    if len(found) != 1:
        raise WrongUse("say one of --delivered, --send-again, --give-up")
    return found[0]


def _check_use(
    effect_key: str | None, resolution: Resolution, message_id: str | None, *, bulk: bool
) -> None:
    if effect_key is None and not bulk:
        raise WrongUse("name a KEY, or choose held effects by --topic or --before")
    if effect_key is not None and bulk:
        raise WrongUse("a KEY and --topic or --before exclude each other")
    if message_id is not None and (effect_key is None or resolution is not Resolution.DELIVERED):
        raise WrongUse("--message-id goes with one KEY and --delivered")


def _decide(
    found: Operator,
    keys: list[str],
    resolution: Resolution,
    message_id: str | None,
    *,
    dry_run: bool,
) -> list[Resolved]:
    if dry_run:
        return preview(found, keys)
    return resolve(found, keys, resolution, message_id)


def _answer(results: list[Resolved], resolution: Resolution, *, dry_run: bool, json: bool) -> None:
    done = [result for result in results if result.done]
    skipped = len(results) - len(done)
    for result in results:
        if not result.done:
            complain(_not_held(result))
    if json:
        print_json({
            "resolution": resolution, "dry_run": dry_run, "resolved": len(done),
            "skipped": skipped, "effects": results,
        })  # fmt: skip
        return
    for result in done:
        say(f"{result.effect_key}: {_what(result, resolution, dry_run=dry_run)}")
    if len(results) != 1:
        say(f"{'would resolve' if dry_run else 'resolved'} {len(done)}, skipped {skipped}")


def _what(result: Resolved, resolution: Resolution, *, dry_run: bool) -> str:
    if dry_run:
        return f"would be resolved as {resolution}"
    if resolution is Resolution.SEND_AGAIN and result.jobs == 0:
        return "free to be sent again, but no job waits for it: enqueue one with this key"
    return _DONE[resolution]


def _not_held(result: Resolved) -> str:
    if result.state is None:
        return f"{result.effect_key}: not resolved: the ledger has no such key"
    return f"{result.effect_key}: not resolved: it is {result.state}, not held (any more)"
