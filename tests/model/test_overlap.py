"""What overlaps in PostgreSQL comes out as one after the other, as the model takes it to be.

``MODEL_PAIRS=5000`` overlaps so many random pairs instead of some hundred; a failure names its
seed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.model.overlap import Overlap, random_pair
from tests.model.seat import Disagreement

PAIRS = int(os.environ.get("MODEL_PAIRS", "120"))
CHUNKS = 2


@pytest.fixture
async def overlap(database_url: str) -> AsyncIterator[Overlap]:
    """A database on which two steps are taken at once."""
    async with Overlap.open(database_url) as overlap:
        yield overlap


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("chunk", range(CHUNKS))
async def test_two_steps_at_once_are_one_after_the_other(overlap: Overlap, chunk: int) -> None:
    """While one has not committed the other waits or passes; no third outcome is ever seen."""
    waited: Counter[bool] = Counter()
    for seed in range(PAIRS)[chunk::CHUNKS]:
        try:
            waited[await overlap.run(random_pair(seed))] += 1
        except Disagreement as error:
            raise Disagreement(f"seed {seed}: {error}") from error

    # A rig in which nothing ever waits would prove nothing.
    assert waited[True] > len(range(PAIRS)[chunk::CHUNKS]) / 10
