"""``outbox effects list, show``: what the ledger says of each key."""

from __future__ import annotations

from typing import Annotated

import typer

from outbox.commands.answer import (
    as_mapping,
    print_facts,
    print_json,
    print_json_lines,
    print_table,
    say,
)
from outbox.commands.options import JSON_PAGE, PAGE, AsJson, Key, PageLimit, Topic, parse_key
from outbox.commands.resolve import resolve_command
from outbox.commands.session import operator
from outbox.commands.wording import moment
from outbox.errors import OutboxError
from outbox.inspection import EffectHistory, EffectRecord, JobOfEffect, effect_history, list_effects
from outbox.job import EffectState

effects = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="The ledger of effects: was it sent, and what to do where nobody knows.",
)
effects.command("resolve")(resolve_command)

_SENT = {
    "delivered": "sent: the provider accepted it",
    "rejected": "not sent: the provider refused it for good",
    "held": "nobody knows: it may have been sent, and can't be repeated safely",
}


@effects.command("list")
def list_command(
    state: Annotated[EffectState | None, typer.Option(help="Only in this state.")] = None,
    topic: Topic = None,
    limit: PageLimit = None,
    after: Annotated[
        str | None, typer.Option(metavar="KEY", parser=parse_key, help="Only keys after it.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List the ledger's keys in their order."""
    with operator() as found:
        if json and limit is None:
            key = after or ""
            while page := list_effects(found, state=state, topic=topic, after=key, limit=JSON_PAGE):
                print_json_lines(page)
                key = page[-1].effect_key
            return
        shown = limit or PAGE
        page = list_effects(found, state=state, topic=topic, after=after or "", limit=shown)
    if json:
        print_json_lines(page)
        return
    print_table(
        ("key", "state", "requests", "first", "last", "settled", "provider's id", "detail"),
        [_row(effect) for effect in page],
    )
    if not page:
        say("no such effects")
    elif len(page) == shown:
        say(f"there may be more: --after {page[-1].effect_key}")


@effects.command("show")
def show_command(effect_key: Key, json: AsJson = False) -> None:
    """Show one effect: was it sent, when, by whom, how often, under which id, what can be done."""
    with operator() as found:
        history = effect_history(found, effect_key)
        if history.effect is None:
            raise OutboxError(_unknown(effect_key, history))
    effect, jobs = history.effect, history.jobs
    if json:
        print_json({**as_mapping(effect), "jobs": jobs or [], "jobs_complete": jobs is not None})
        return
    print_facts(_facts(effect, jobs))
    for line in _what_to_do(effect):
        say(line)


def effect_line(effect: EffectRecord) -> str:
    """Return in one line whether an effect was sent."""
    if effect.state == "given_up":
        may = "it may have been sent" if effect.may_have_been_sent else "not sent"
        return f"given up by a person: {may}"
    if effect.state == "open":
        may = "may have been sent" if effect.may_have_been_sent else "not sent: no request is open"
        return f"not settled: {may}"
    return _SENT[effect.state]


def _unknown(effect_key: str, history: EffectHistory) -> str:
    if history.jobs:
        waiting = ", ".join(f"job {job.id} is {job.state}" for job in history.jobs)
        return f"{effect_key}: no request was ever begun for this key; {waiting}"
    return f"{effect_key}: this key is unknown: neither the ledger nor a job has it"


def _row(effect: EffectRecord) -> tuple[object, ...]:
    return (
        effect.effect_key, effect.state, effect.requests_sent, moment(effect.first_attempt_at),
        moment(effect.last_attempt_at), moment(effect.settled_at), effect.provider_message_id,
        effect.detail,
    )  # fmt: skip


def _facts(effect: EffectRecord, jobs: list[JobOfEffect] | None) -> dict[str, str]:
    first, last = moment(effect.first_attempt_at), moment(effect.last_attempt_at)
    return {
        "effect": effect.effect_key,
        "state": f"{effect.state}: {effect_line(effect)}",
        "when": f"first request {first}, last {last}",
        "settled": moment(effect.settled_at),
        "open since": moment(effect.open_since),
        "how often": f"{effect.requests_sent} request(s) begun, so at most as many arrived",
        "by whom": f"{effect.attempted_by}, for job {effect.job_id}",
        "provider": f"{effect.provider}, account {effect.account}",
        "provider's id": effect.provider_message_id or "",
        "key on the wire": effect.wire_key,
        "request": f"SHA-256 {effect.request_sha256}" if effect.request_sha256 else "",
        "detail": effect.detail or "",
        "topic": effect.topic,
        "jobs": "not found in time" if jobs is None else ", ".join(map(_job, jobs)),
    }


def _job(job: JobOfEffect) -> str:
    return f"{job.id} {job.state}" + (f" ({job.reason})" if job.reason else "")


def _what_to_do(effect: EffectRecord) -> list[str]:
    """The commands that fit the state, for copying."""
    key, since = effect.effect_key, moment(effect.open_since)
    match effect.state:
        case "held":
            return [
                f"Look for it at {effect.provider}, from {since} on; then one of",
                f"  outbox effects resolve {key} --delivered [--message-id ID]   it was sent",
                f"  outbox effects resolve {key} --send-again   may make a second one",
                f"  outbox effects resolve {key} --give-up   leave it at that",
            ]
        case "rejected":
            return [f"To have it rendered and sent anew: outbox retry {effect.job_id}"]
        case "given_up":
            again = " --send-again   may make a second one" if effect.may_have_been_sent else ""
            return [f"To have it rendered and sent anew: outbox retry {effect.job_id}{again}"]
        case _:
            return []
