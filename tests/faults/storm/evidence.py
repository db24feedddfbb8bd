"""Writes down what a state file shows, for people: docs/evidence.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tests.faults.oracle import Verdict
from tests.faults.storm.campaign import State
from tests.faults.storm.history import AGAIN
from tests.faults.storm.kinds import KINDS, NOT_TRIED, Kind
from tests.faults.storm.moments import JOB_MOMENTS, OTHER_MOMENTS

_INTRODUCTION = """\
# Evidence

<!-- Written by `python -m tests.faults.storm` from its state file; not by hand. -->

Real consumers, a real PostgreSQL, a mail service in a process of its own, and faults of one kind at
a time (`mix`: of several). A history is a fresh database, orders that keep coming, faults that a
seed has chosen; then peace, a drain by fresh consumers, and the count. The count is the independent
oracle's ([tests/faults/oracle.py](../tests/faults/oracle.py), which imports no code of the
project): from the orders that the shop has committed and from the mail service's own record. Each
kind of fault is tried with a provider that replays keys, and with one that keeps none, where the
setting is `hold`.

A request is surplus when neither a fault of the provider nor one that its consumer met while it was
at work on the order explains it. `make faults` repeats all of it, `make faults FAULTS=500` a small
mix; [how the rig works](../tests/faults/storm/__init__.py).
"""
_MUST_BE_ZERO = (
    Verdict.LOST,
    Verdict.DUPLICATED,
    Verdict.SENT_WITHOUT_ORDER,
    Verdict.SURPLUS,
    Verdict.OTHER_BYTES,
    Verdict.HELD_WITHOUT_REASON,
    Verdict.ENDED_BUT_SENT,
    Verdict.MORE_THAN_BEGUN,
    Verdict.CANT_SAY,
)
_HELD_UNSENT = """\
Some of those held were never sent at all. An intent is committed before its call; when the database
then goes away for longer than the lease, or the consumer dies in between, no call starts, and
whoever takes over finds an open intent and can't know that. Without keys it holds the order. That
is the safe side, and a person sees the same as of one that was sent: look, then send again."""
_REPEATED = """\
Where what is unknown is sent again (`repeats`: no keys, `EMAIL_UNKNOWN=repeat`), {} e-mails were
accepted once more for an order that had one. That is the documented price, and not among the
duplicates above: for each of them a consumer died, or had no answer, after the intent was committed
and before the answer was settled. One without such a reason counts as a duplicate."""


def render(state: State) -> str:
    """Return the page."""
    return "\n".join(_parts(state)).rstrip() + "\n"


def _parts(state: State) -> Iterator[str]:
    yield _INTRODUCTION
    yield "## Runs\n"
    yield from _runs(state)
    yield "\n## Totals\n"
    yield from _totals(state)
    yield "\n## What is counted as one fault\n"
    yield from (f"- **{kind.name}**: {kind.fault}." for kind in KINDS.values())
    yield "\n## Where they struck\n"
    yield from _where(state)
    yield "\n## What was not tried\n"
    yield from (f"- {line}" for line in NOT_TRIED)
    missing = [kind.name for kind in KINDS.values() if state.done(kind) == 0]
    if missing:
        yield f"- In this run: {', '.join(missing)}."
    for name, reason in _impossible(state).items():
        yield f"- On this machine: {name} ({reason})."
    yield "\n## Seeds\n"
    yield from _seeds(state)


def _impossible(state: State) -> dict[str, str]:
    return {line["kind"]: line["reason"] for line in state.of("impossible")}


def _runs(state: State) -> Iterator[str]:
    yield "| began (UTC) | commit | minutes | ended | PostgreSQL | Python, loop | system |"
    yield "|---|---|---|---|---|---|---|"
    for run, end in _with_ends(state):
        minutes = f"{end['seconds'] / 60:.1f}" if end else ""
        yield (
            f"| {run['began']} | {run['commit']} | {minutes} "
            f"| {end['reason'] if end else 'cut short'} | {run['postgresql']} "
            f"| {run['python']}, {run['loop']} | {run['system']} |"
        )
    packages = Counter(
        f"{name} {number}" for run in state.of("run") for name, number in run["packages"].items()
    )
    yield f"\n{', '.join(packages)}."


def _with_ends(state: State) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    run: dict[str, Any] | None = None
    for line in state.lines:
        if line["event"] == "run":
            if run is not None:
                yield run, None
            run = line
        elif line["event"] == "end" and run is not None:
            yield run, line
            run = None
    if run is not None:
        yield run, None


def _totals(state: State) -> Iterator[str]:
    yield (
        "| kind | faults | aim | provider | histories | orders | requests | accepted | held "
        "| met while at work | longest drain, s | minutes |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for kind in KINDS.values():
        for keeps_keys in kind.providers:
            lines = _of(state, kind, keeps_keys)
            if lines:
                yield _total(kind, keeps_keys, lines)
    short = [kind.name for kind in KINDS.values() if state.done(kind) < kind.aim]
    if short:
        yield f"\nFewer than the long run is to have: {', '.join(short)}."
    histories = list(state.of("history"))
    verdicts = sum((Counter(line["verdicts"]) for line in histories), Counter[str]())
    yield "\n| what must not be | |\n|---|---|"
    for verdict in _MUST_BE_ZERO:
        yield f"| {verdict.value} | {verdicts[verdict.value]} |"
    others = sum(not line["problems"] for line in histories)
    yield f"| histories with anything else wrong | {len(histories) - others} |"
    late = sum(line["late_heartbeats"] for line in histories)
    yield (
        f"\n{verdicts[Verdict.DELIVERED_ONCE.value]} orders were delivered once, "
        f"{verdicts[Verdict.HELD.value]} held: a request of theirs may have left, and the provider "
        "can't be asked again. *Met while at work*: orders that a consumer was at work on when a "
        f"fault met it, counted for each fault. {late} consumers were so short of processor time "
        "that their heartbeats came too late; that counts as a fault of the machine."
    )
    yield f"\n{_HELD_UNSENT}"
    again = sum(line["tally"].get(AGAIN, 0) for line in histories)
    yield f"\n{_REPEATED.format(again)}"


def _total(kind: Kind, keeps_keys: bool, lines: Sequence[dict[str, Any]]) -> str:
    def total(name: str) -> int:
        return sum(line[name] for line in lines)

    held = sum(line["verdicts"].get(Verdict.HELD.value, 0) for line in lines)
    seconds = sum(line["seconds"] for line in lines)
    aim = kind.aim if keeps_keys is kind.providers[0] else ""
    return (
        f"| {kind.name} | {total('faults')} | {aim} "
        f"| {'replays keys' if keeps_keys else 'no keys'} | {len(lines)} | {total('orders')} "
        f"| {total('requests')} | {total('accepted')} | {held} | {total('in_flight')} "
        f"| {max(line['drain_seconds'] for line in lines):.1f} | {seconds / 60:.1f} |"
    )


def _of(state: State, kind: Kind, keeps_keys: bool | None = None) -> list[dict[str, Any]]:
    return [
        line
        for line in state.of("history")
        if line["kind"] == kind.name and keeps_keys in {None, line["keeps_keys"]}
    ]


def _where(state: State) -> Iterator[str]:
    for kind in KINDS.values():
        tally = sum((Counter(line["tally"]) for line in _of(state, kind)), Counter[str]())
        if tally:
            counts = ", ".join(f"{what} {number}" for what, number in sorted(tally.items()))
            yield f"- **{kind.name}**: {counts}."
        if tally and kind.name == "kills":
            never = [m for m in (*JOB_MOMENTS, *OTHER_MOMENTS) if f"at {m}" not in tally]
            yield f"  Moments at which nobody was killed: {', '.join(never) or 'none'}."


def _seeds(state: State) -> Iterator[str]:
    yield (
        "`python -m tests.faults.storm --replay KIND:keys:SEED` (or `KIND:none:SEED`) tells one "
        "history again.\n"
    )
    for kind in KINDS.values():
        for keeps_keys in kind.providers:
            seeds = sorted(line["seed"] for line in _of(state, kind, keeps_keys))
            if seeds:
                provider = "keys" if keeps_keys else "none"
                yield f"- {kind.name}:{provider}: {_ranges(seeds)}"


def _ranges(numbers: Sequence[int]) -> str:
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number <= ranges[-1][-1] + 1:
            ranges[-1][-1] = number
        else:
            ranges.append([number, number])
    return ", ".join(f"{a} to {b}" if a != b else f"{a}" for a, b in ranges)
