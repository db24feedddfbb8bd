"""Histories that nobody thought of, on a real PostgreSQL.

``MACHINE_EXAMPLES=5000`` looks at more of them, ``MACHINE_STEPS`` at longer ones. That the machine
goes everywhere, and that it would notice, is shown with fixed seeds and planted bugs.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.machine.bench import Bench
from tests.machine.machine import OutboxMachine, Wish
from tests.machine.plants import planted
from tests.machine.provider import ACTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.databases import Databases

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "20"))
STEPS = int(os.environ.get("MACHINE_STEPS", "50"))
#: Histories of one fixed seed; the next one is asked only where these were not enough.
EXAMPLES_OF_A_SEED = 20
SEEDS = range(1, 9)

#: What the machine must reach, and how often at least.
GOALS = {
    **dict.fromkeys(
        (
            "enqueue", "enqueue: ordered", "enqueue: key in the ledger", "enqueue: rolled back",
            "enqueue: savepoint rolled back", "claimed a job", "claimed a crashed job",
            "claimed what a stale claim has in hand", "begin: Attempt", "begin: LeaseLost",
            "settle: delivered", "settle: open", "settle: held", "settle: stale", "crash",
            "restart", "heartbeat", "lapse", "another place", "another template", "cancel: done",
            "retry: done", "resolve", "prune",
        ),
        3,
    ),
    **dict.fromkeys(
        (
            *(f"answer: {act}" for act in ACTS), "call: not started", "heartbeat: told of a loss",
            "crash after claim", "crash after begin", "crash after answer", "restart: gave back",
            "begin: duplicate delivered", "begin: dead effect_key_conflict",
            "begin: cancelled expired", "begin: dead unrenderable",
            "begin: retry effect_at_work_elsewhere", "begin: hold held",
            "begin: hold memory_lapsed", "begin: hold max_attempts",
            "begin: hold open_at_another_account", "settle: moved on", "settle: rejected",
            "cancel: running", "cancel: may_have_been_sent", "resolve: delivered",
            "resolve: send_again", "resolve: give_up", "resolve: not held", "prune: cleared",
            "world: keys, hold", "world: keys, repeat", "world: no keys, hold",
            "world: no keys, repeat",
        ),
        1,
    ),
}  # fmt: skip

#: Bugs that show themselves soon, one for each kind of step.
QUICK_PLANTS = (
    "settle without a fence",
    "claim what is claimed",
    "reopen with new bytes",
    "retry what may have been sent",
    "an unknown try is taken for unsent",
)


@pytest.fixture(scope="module")
def url(databases: Databases) -> Iterator[str]:
    """One database for all histories."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    """A bench that has reached nothing yet."""
    with Bench.open(url) as bench:
        yield bench


def profile(examples: int, *phases: Phase) -> settings:
    """How histories are looked for: anew each time, and what fails is printed to be repeated."""
    return settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
        phases=phases or (Phase.generate, Phase.shrink),
    )


def machine(on: Bench) -> type[OutboxMachine]:
    """The machine on a bench."""
    return type("OutboxMachine", (OutboxMachine,), {"bench": on})


def run_seed(on: Bench, number: int) -> None:
    """The histories of a fixed seed."""
    run_state_machine_as_test(
        seed(number)(machine(on)), settings=profile(EXAMPLES_OF_A_SEED, Phase.generate)
    )


def run_seeds(on: Bench) -> None:
    """The histories of all fixed seeds."""
    for number in SEEDS:
        run_seed(on, number)


@pytest.mark.timeout(120 + 10 * EXAMPLES)
def test_no_history_breaks_a_promise(bench: Bench) -> None:
    """Orders, crashes, answers, people and time in any order; each step is judged."""
    run_state_machine_as_test(machine(bench), settings=profile(EXAMPLES))


@pytest.mark.timeout(600)
def test_the_machine_goes_everywhere(bench: Bench) -> None:
    """Each rule, answer and end is reached, else a machine that finds nothing proves nothing."""
    missing = GOALS
    for number in SEEDS:
        run_seed(bench, number)
        missing = {goal: least for goal, least in GOALS.items() if bench.reached[goal] < least}
        if not missing:
            break
    assert not missing


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", QUICK_PLANTS)
def test_a_planted_bug_is_found(plant: str, bench: Bench) -> None:
    """One guard is taken out of one statement or decision."""
    with planted(plant), pytest.raises(AssertionError):
        run_seeds(bench)


def test_two_claims_of_one_process_on_one_job_may_meet_in_a_batch(bench: Bench) -> None:
    """The database was away for longer than a lease: what waited to be settled is stale by now."""
    history = machine(bench)()
    history.begin_history(
        memory=3_600.0,
        repeat=False,
        wishes=[Wish("a", "hello", "commits", False, None, None, 0, None)],
    )
    history.work(seat=0, acts=["throttled"], until="call", own=True)
    history.overtake(seat=0, by=0, until="call", act="answer lost", own=True)
    history.batch(pick=0, what="settle", answer_lost=False)
    history.promises()
    history.teardown()
