"""The storm in small: some faults of each kind, each history judged by the oracle.

The long form is ``make faults``. That the rig would notice is shown with planted bugs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.storm import campaign
from tests.faults.storm.campaign import Campaign, State, aims, chosen
from tests.faults.storm.evidence import render
from tests.faults.storm.history import AGAIN, Chapter, World, tell
from tests.faults.storm.kinds import KINDS
from tests.faults.storm.trace import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Kinds of fault, whether the provider keeps keys, and how many faults.
SHORT = (
    ("kills", True, 8),
    ("kills", False, 8),
    ("stops", False, 3),
    ("shutdowns", True, 2),
    ("lost-answers", False, 8),
    ("cuts", True, 10),
    ("terminations", False, 5),
    ("lapses", True, 1),
    ("wrong-clocks", True, 3),
    ("blocks", True, 1),
    ("heartbeats", False, 1),
    ("refusals", False, 1),
    ("failovers", False, 3),
    ("promotions", True, 2),
    ("producers", True, 12),
    ("mix", False, 8),
)
SEED = 1
#: In so many histories a planted bug must have shown itself.
CHANCES = 5


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A PostgreSQL of these tests' own, which may be shut down, and a nursery of consumers."""
    with campaign.world(tmp_path_factory.mktemp("storm")) as world:
        yield world


def planted(world: World, plant: str) -> World:
    """The same world, with a bug in each consumer."""
    name = f"tests.faults.storm.plants:{plant}"
    return World(world.directory, world.leash, world.server, world.nursery, plant=name)


@pytest.mark.parametrize(("name", "keeps_keys", "faults"), SHORT)
def test_nothing_is_lost_or_sent_twice_or_asked_for_too_often(
    name: str, keeps_keys: bool, faults: int, world: World
) -> None:
    """Faults, then peace and a drain, then the count at the provider."""
    kind = KINDS[name]
    result = tell(world, Chapter(name, keeps_keys, SEED), kind.story, faults, kind.options)
    assert result.problems == {}, _explained(result.directory, list(result.problems))
    assert result.faults >= faults
    assert result.accepted


def test_a_full_disk_loses_nothing_where_one_can_be_made(world: World, tmp_path: Path) -> None:
    """A machine that lets nobody mount a filesystem says so on the page of evidence."""
    kind = KINDS["full-disk"]
    state = State.open(tmp_path / "state.jsonl")
    if (reason := kind.why_not()) is None:
        result = tell(world, Chapter(kind.name, False, SEED), kind.story, 2, kind.options)
        state.add("history", planned=2, **result.as_json())
        assert result.problems == {}, _explained(result.directory, list(result.problems))
        assert {"tables", "WAL"} <= result.tally.keys()
    else:
        state.add("impossible", kind=kind.name, reason=reason)
        assert f"On this machine: full-disk ({reason})" in render(state)


def test_the_unknown_sent_again_is_accepted_twice_only_where_a_consumer_died_at_it(
    world: World,
) -> None:
    """The documented price of ``EMAIL_UNKNOWN=repeat``: it is paid, and each time explained."""
    kind = KINDS["repeats"]
    again = 0
    for seed in range(CHANCES):
        result = tell(world, Chapter(kind.name, False, seed), kind.story, 8, kind.options)
        assert result.problems == {}, _explained(result.directory, list(result.problems))
        again += result.tally.get(AGAIN, 0)
        if again:
            break
    assert again


def test_doubles_are_seen_where_nobody_has_allowed_them(world: World) -> None:
    """The same setting, of which the rig knows nothing."""
    assert "duplicated" in _found(planted(world, "repeat_without_keys"), "kills", keeps_keys=False)


def test_an_email_that_is_called_sent_before_it_is_sent_is_found_lost(world: World) -> None:
    """A consumer that dies in between has left nothing to go by."""
    assert "lost" in _found(planted(world, "settle_before_the_call"), "kills", keeps_keys=True)


def test_claiming_what_another_is_at_work_on_is_found_by_its_surplus_requests(world: World) -> None:
    """The provider's keys hide it from whoever counts e-mails alone."""
    found = _found(planted(world, "claim_what_is_claimed"), "kills", keeps_keys=True)
    assert "surplus requests" in found


def _found(world: World, name: str, *, keeps_keys: bool) -> set[str]:
    for seed in range(CHANCES):
        result = tell(world, Chapter(name, keeps_keys, seed), KINDS[name].story, 8)
        if result.problems:
            return {what for problems in result.problems.values() for what in problems}
    return set()


def _explained(directory: str | None, keys: list[str]) -> str:
    lines = [f"see {directory}"]
    for key in keys if directory else []:
        lines += [key, *trace(Path(directory or ""), key)]
    return "\n".join(lines)


def history(kind: str, *, keeps_keys: bool, faults: int, **more: object) -> dict[str, object]:
    """A line of a state file."""
    return {
        "chapter": f"{kind}:{'keys' if keeps_keys else 'none'}:1",
        "kind": kind,
        "keeps_keys": keeps_keys,
        "seed": 1,
        "faults": faults,
        "tally": {},
        "orders": 3,
        "requests": 4,
        "accepted": 3,
        "in_flight": 1,
        "late_heartbeats": 0,
        "verdicts": {"delivered once": 3},
        "wrong": 0,
        "problems": {},
        "drain_seconds": 0.5,
        "seconds": 1.0,
        **more,
    }


def a_campaign(state: State, tmp_path: Path, **how_many: int) -> Campaign:
    """One that need not run."""
    return Campaign(state, how_many, seed=1, seconds_max=60, directory=tmp_path)


def test_a_run_goes_on_where_its_state_file_ends(tmp_path: Path) -> None:
    """Of a line that a kill has torn nothing is believed; the next history has the next seed."""
    path = tmp_path / "state.jsonl"
    state = State.open(path)
    state.add("history", **history("kills", keeps_keys=True, faults=100))
    with path.open("a") as file:
        file.write(json.dumps({"event": "history"})[:-3])
    again = State.open(path)
    again.add("history", **history("stops", keeps_keys=True, faults=40))
    assert [line["kind"] for line in State.open(path).of("history")] == ["kills", "stops"]
    assert a_campaign(again, tmp_path, kills=200).next() == Chapter("kills", False, 1)
    again.add("history", **history("kills", keeps_keys=False, faults=50))
    assert a_campaign(again, tmp_path, kills=200).next() == Chapter("kills", True, 2)
    assert a_campaign(again, tmp_path, kills=150).next() is None
    assert a_campaign(again, tmp_path, kills=150, stops=40).next() == Chapter("stops", False, 1)


def test_faults_are_shared_out_as_in_the_long_run() -> None:
    """And no kind goes without."""
    shared = aims(list(KINDS), 100)
    assert shared.keys() == KINDS.keys()
    assert min(shared.values()) == 1
    assert max(shared, key=lambda name: shared[name]) == "kills"
    assert aims(["stops"], None) == {"stops": KINDS["stops"].aim}
    assert "outages" in chosen(None)
    assert "outages" not in chosen(100)


def test_the_page_of_evidence_says_what_was_done_and_what_was_not(tmp_path: Path) -> None:
    """Its totals are the state file's, with what must not be, and what nobody has tried."""
    state = State.open(tmp_path / "state.jsonl")
    facts = {
        "commit": "0123456789ab",
        "began": "2026-03-01T12:00:00Z",
        "postgresql": "18.6",
        "python": "3.11",
        "system": "Linux, 2 cores",
        "loop": "asyncio",
        "packages": {"psycopg": "3.3"},
    }
    state.add("run", **facts)
    state.add("history", **history("kills", keeps_keys=True, faults=100))
    state.add("history", **history("kills", keeps_keys=False, faults=70, verdicts={"lost": 2}))
    state.add("end", seconds=90.0, reason="all done")
    page = render(state)
    assert "| 2026-03-01T12:00:00Z | 0123456789ab | 1.5 | all done |" in page
    assert "| kills | 100 | 8000 | replays keys |" in page
    assert "| kills | 70 |  | no keys |" in page
    assert "| lost | 2 |" in page
    assert "In this run: stops, shutdowns" in page
    assert "kills:none: 1" in page
