"""The storm in small: some faults of each kind, each history judged by the oracle.

The long form is ``make faults``. That the rig would notice is shown with planted bugs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.storm import campaign
from tests.faults.storm.campaign import Campaign, State, aims
from tests.faults.storm.evidence import render
from tests.faults.storm.history import Chapter, World, tell
from tests.faults.storm.kinds import KINDS
from tests.faults.storm.trace import trace

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Kinds of fault, whether the provider keeps keys, and how many faults.
SHORT = (
    ("kills", True, 12),
    ("kills", False, 12),
    ("stops", True, 4),
    ("stops", False, 4),
    ("shutdowns", True, 2),
    ("shutdowns", False, 2),
    ("lost-answers", True, 10),
    ("lost-answers", False, 10),
    ("cuts", True, 12),
    ("cuts", False, 12),
    ("terminations", False, 10),
    ("lapses", True, 1),
    ("wrong-clocks", True, 6),
    ("blocks", True, 2),
    ("heartbeats", False, 2),
    ("mix", True, 10),
    ("mix", False, 10),
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


def test_a_provider_without_keys_gets_doubles_where_the_unknown_is_repeated(world: World) -> None:
    """The documented price of ``EMAIL_UNKNOWN=repeat``, and a proof that doubles are seen."""
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
