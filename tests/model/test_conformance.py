"""The shipped code goes the model's way, step by step, on a real PostgreSQL.

``MODEL_TRACES=5000`` replays so many random traces instead of some hundred; a failure names the
seed, and ``MODEL_SEED=17`` replays that one alone.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from tests.model.explore import Explorer
from tests.model.replay import Bench, Replay, Trace
from tests.model.sabotage import SABOTAGES, Sabotage
from tests.model.seat import Disagreement
from tests.model.spec import steps
from tests.model.state import Budget, World
from tests.model.traces import random_trace

TRACES = int(os.environ.get("MODEL_TRACES", "160"))
SEEDS = [int(os.environ["MODEL_SEED"])] if "MODEL_SEED" in os.environ else list(range(TRACES))
#: So that they can run side by side.
CHUNKS = 4
#: Two jobs of one key, from whose explored states some are drawn, with the shortest way to each.
EXPLORED = (
    World((0, 0), 2, replays=True, budget=Budget(1)),
    World((0, 0), 2, replays=False, budget=Budget(1, people=1)),
)
PATHS = max(30, TRACES // 5)


@cache
def shortest_ways(world: World) -> list[Trace]:
    """The ways to some of the states of a world."""
    explorer = Explorer(world)
    assert explorer.run().counterexample is None
    return list(explorer.some_traces(PATHS, seed=1))


@pytest.fixture
async def bench(database_url: str) -> AsyncIterator[Bench]:
    """A database on which traces are replayed one after the other."""
    async with Bench.open(database_url) as bench:
        yield bench


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_the_code_follows_random_traces(bench: Bench, chunk: int) -> None:
    """After each step the tables, the decisions and the point of each process are the model's."""
    for seed in SEEDS[chunk::CHUNKS]:
        world, trace = random_trace(seed)
        try:
            await bench.replay(world, trace)
        except Disagreement as error:
            raise Disagreement(f"seed {seed}, {world}: {error}") from error


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("world", EXPLORED, ids=str)
async def test_the_code_follows_the_shortest_way_to_explored_states(
    bench: Bench, world: World
) -> None:
    """Deep interleavings that a random walk seldom meets, drawn from a complete exploration."""
    for trace in shortest_ways(world):
        await bench.replay(world, trace)


@pytest.mark.parametrize("sabotage", [each for each in SABOTAGES if each.on_code], ids=str)
async def test_the_code_does_not_follow_a_sabotaged_model(bench: Bench, sabotage: Sabotage) -> None:
    """The trace that breaks a promise can't be replayed: the shipped code has the missing guard."""
    found = Explorer(sabotage.world, sabotage.promises).run().counterexample
    assert found is not None

    sound = replace(sabotage.world, without="")
    with pytest.raises(Disagreement) as caught:
        await bench.replay(sound, found.trace)

    # Not before the sound model does; what a process has decided shows at its next step.
    parted = next(
        at
        for at, ((_, before), (action, after)) in enumerate(pairwise(found.trace), start=1)
        if dict(steps(sound, before)).get(action) != after
    )
    assert caught.value.at >= parted


def test_together_the_traces_take_every_kind_of_step() -> None:
    """What is never drawn is never compared."""
    traces: list[Trace] = [random_trace(seed)[1] for seed in range(120)]
    traces += [trace for world in EXPLORED for trace in shortest_ways(world)]
    taken = {action[0] for trace in traces for action, _ in trace[1:]}

    assert taken == Replay.kinds()
