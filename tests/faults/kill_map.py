"""Writes docs/kill-map.md from what the tests assert: ``python -m tests.faults.kill_map``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.faults.commits import COMMANDS, PRODUCERS, Transaction
from tests.faults.scenarios import RETRY, SCENARIOS, WAYS, Scenario, moments_of

FILE = Path(__file__).parents[2] / "docs" / "kill-map.md"
MOMENTS = ("before", "sent", "after")

_HEAD = """\
# The kill map

Written by `python -m tests.faults.kill_map` from the lists that the tests run by; a test fails when
this file says anything else. It has {deaths} deaths. Each is a real process that sends itself
SIGKILL at a named point: `before` a network call or a statement, when a statement has been `sent`
and its answer not read, or `after` it. Nothing is sampled: a run in which nobody dies writes down
its points, and they are compared with these lists, so that a new statement or another round trip
makes the tests red until the map has it.

Consumers run as shipped, at concurrency 1, with httpx and on uvloop (the delivery on Python's own
loop, too), against the shop's mail-service as another process. After each death a consumer lives
that finds what is left; then the provider's own record is counted, by `tests/faults/judge.py` and
by `tests/faults/oracle.py`, which shares no code with the product. (That the lease of a dead
consumer runs out by itself is tested elsewhere; here the database is told that it has.)

- **With a provider that replays keys** no death changes the end: one e-mail for each order, or none
  where the provider refuses it for good.
- **With one that keeps no keys** there are never two. An order is held for a person when its
  consumer dies in one window: from `{first}` (of a repeat: `{repeat}`)
  to `{last}`, while the intent is committed and the answer is not. Whether a held one
  was sent, 0 or 1, only the provider's record can tell.
- **A producer** leaves an order and its job, or neither: what decides is whether its COMMIT was
  sent.
- **A command** that is killed is run again, and leaves what it would have left at once.

A cell says how the order ends, whoever dies: its state, and the e-mails accepted by the provider.
Steps that are the same on every way (the start, the end, what a way shares with the delivery) are
tried on the first way alone. What polls and heartbeats repeat at their own pace is tried at its
first time.
"""


def render() -> str:
    """The whole file."""
    delivery, retry = (_held(scenario) for scenario in (SCENARIOS[0], RETRY))
    repeat = next(point for point in retry if point.startswith("reopen_effects"))
    head = _HEAD.format(deaths=count_deaths(), first=delivery[0], last=delivery[-1], repeat=repeat)
    consumers = [_way(scenario) for scenario in dict.fromkeys(scenario for scenario, _ in WAYS)]
    return "\n".join([
        head,
        "## Consumers\n",
        *consumers,
        "## Producers\n",
        *map(_transaction, PRODUCERS),
        "## Commands\n",
        *map(_transaction, COMMANDS),
    ])  # fmt: skip


def _held(scenario: Scenario) -> list[str]:
    """Where a death leaves its order held, if the provider keeps no keys."""
    deaths = scenario.deaths(keeps_keys=False)
    return [p for p in deaths if "held" in scenario.fate(p, keeps_keys=False).states]


def count_deaths() -> int:
    """Of all ways."""
    of_consumers = sum(len(scenario.deaths(keeps_keys=keys)) for scenario, keys in WAYS)
    return of_consumers + sum(len(way.points) for way in (*PRODUCERS, *COMMANDS))


def _way(scenario: Scenario) -> str:
    parts = [_title(scenario.name), f"{scenario.about}\n"]
    for keeps_keys in (keys for one, keys in WAYS if one is scenario):
        deaths = scenario.deaths(keeps_keys=keeps_keys)
        fates = {point: str(scenario.fate(point, keeps_keys=keeps_keys)) for point in deaths}
        parts.append(_fates(f"{'With' if keeps_keys else 'Without'} keys", fates))
    return "\n".join(parts)


def _transaction(way: Transaction) -> str:
    fates = {point: way.truth(point) for point in way.points}
    return "\n".join([_title(way.name), f"{way.about}\n", _fates("All", fates)])


def _title(name: str) -> str:
    return f"### {name[0].upper()}{name[1:]}\n"


def _fates(title: str, fates: Mapping[str, str]) -> str:
    """A sentence where all deaths end alike, else a table."""
    steps = list(dict.fromkeys(point.rpartition(":")[0] for point in fates))
    if len(ends := set(fates.values())) == 1:
        return (
            f"{title} ({len(fates)} deaths): **{ends.pop()}**, wherever it dies: {_code(steps)}.\n"
        )
    rows = [
        [_code(group), *cells]
        for cells, group in _groups((step, _cells(step, fates)) for step in steps)
    ]
    return f"{title} ({len(fates)} deaths):\n\n{_table(['step', *MOMENTS], rows)}\n"


def _groups(rows: Iterable[tuple[str, list[str]]]) -> list[tuple[list[str], list[str]]]:
    """Steps next to each other share a row while all their deaths end alike."""
    groups: list[tuple[list[str], list[str]]] = []
    for step, cells in rows:
        alike = {*cells} - {""}
        if groups and len(alike) == 1 and {*groups[-1][0]} - {""} == alike:
            known, steps = groups[-1]
            groups[-1] = (
                [one or other for one, other in zip(known, cells, strict=True)],
                [*steps, step],
            )
        else:
            groups.append((cells, [step]))
    return groups


def _cells(step: str, fates: Mapping[str, str]) -> list[str]:
    moments = moments_of(step)
    return [fates[f"{step}:{moment}"] if moment in moments else "" for moment in MOMENTS]


def _code(steps: Iterable[str]) -> str:
    return ", ".join(f"`{step}`" for step in steps)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
