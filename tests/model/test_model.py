"""The written model: the protocol keeps every promise in it, and each guard is there for a reason.

``MODEL_LARGE=1`` explores the large configurations too (tens of minutes).
"""

from __future__ import annotations

import os
from collections import Counter
from unittest import mock

import pytest

from tests.model import spec
from tests.model.explore import (
    CALM,
    LARGE,
    SMALL,
    Exploration,
    Explorer,
    StateLimit,
    main,
)
from tests.model.replay import Replay
from tests.model.sabotage import SABOTAGES, Sabotage
from tests.model.state import Budget, World

#: Cheap worlds that together meet every kind of step.
ALL_KINDS = (
    World((0, 0), 2, replays=False, budget=Budget(1, people=1)),
    World((0,), 2, replays=True, stops=True, budget=Budget(1, ticks=2, people=1)),
    World((0,), 2, replays=True, budget=Budget(1, lost_commits=1)),
    World((0,), 2, replays=True, expires=True, budget=Budget(2)),
)


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "world", [*SMALL, *(LARGE if os.environ.get("MODEL_LARGE") else ())], ids=str
)
def test_every_promise_holds_in_every_state_and_everything_ends(world: World) -> None:
    """A complete exploration finds no broken promise and no state that can't come to an end."""
    result = Explorer(world).run()

    assert result.counterexample is None, str(result.counterexample)


@pytest.mark.parametrize("sabotage", SABOTAGES, ids=str)
def test_a_missing_guard_is_found_with_the_shortest_trace(
    sabotage: Sabotage,
) -> None:
    """Without the guard the exploration finds the promise broken, and prints how."""
    found = Explorer(sabotage.world, sabotage.promises).run().counterexample

    assert found is not None
    first, *steps = str(found).splitlines()
    assert first == f"broken after {len(found.trace) - 1} steps: {sabotage.promise}"
    assert len(steps) == len(found.trace) - 1


def test_a_trace_leads_from_the_start_to_the_broken_promise_one_step_at_a_time() -> None:
    """Each state of a printed trace follows from the one before it by the step that is named."""
    sabotage = SABOTAGES[-1]
    found = Explorer(sabotage.world, sabotage.promises).run().counterexample

    assert found is not None
    state = sabotage.world.start()
    for action, after in found.trace[1:]:
        state = dict(spec.steps(sabotage.world, state))[action]
        assert state == after


def test_no_shorter_trace_breaks_the_promise() -> None:
    """The same world, explored only to one step less, shows nothing."""
    sabotage = SABOTAGES[-1]
    found = Explorer(sabotage.world, sabotage.promises).run().counterexample
    assert found is not None

    states = {sabotage.world.start()}
    for _ in range(len(found.trace) - 2):
        states |= {after for state in states for _, after in spec.steps(sabotage.world, state)}

    assert all(mail.accepted <= 1 for state in states for mail in state.mails)


def test_every_kind_of_step_is_taken() -> None:
    """A kind that no world takes proves nothing; and the replay on the code knows each of them."""
    taken = {kind for world in ALL_KINDS for kind in Explorer(world).run().actions}

    assert taken | {"heartbeat"} == Replay.kinds()


def test_without_faults_a_job_that_never_ends_would_be_noticed() -> None:
    """Were backoffs never over, the exploration would say so, with the way to where it is stuck."""
    world = World((0,), 2, budget=Budget(1))

    with mock.patch.dict(CALM):
        del CALM["promote"]
        found = Explorer(world).run().counterexample

    assert found is not None
    assert found.promise == "without faults everything ends"
    assert found.trace[-1][1].jobs[0].place == "backoff"


def test_a_search_beyond_its_limit_says_that_it_proves_nothing() -> None:
    """A search that is cut short never passes for a complete one."""
    with pytest.raises(StateLimit, match="more than 100 states"):
        Explorer(World((0,), 2), states_max=100).run()


def test_the_command_prints_states_per_second_and_traces(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The command explores, prints what it has found, and fails only when a promise is broken."""
    intent = [each for each in SABOTAGES if each.world.without == "intent before the call"]
    with mock.patch("tests.model.sabotage.SABOTAGES", intent):
        assert main(["--sabotage"]) == 0

    out = capsys.readouterr().out
    assert "without intent before the call, broken after 9 steps: one key, one e-mail" in out
    assert "provider 0: 2 accepted" in out


def test_a_large_count_of_states_is_printed_readably() -> None:
    """What an exploration has done is one line."""
    result = Exploration(140_854, 500_000, 40, 14.0, Counter(), None)

    assert str(result) == (
        "140,854 states, 500,000 transitions, depth 40, 14.0 s of CPU (10,061 states/s)"
    )
