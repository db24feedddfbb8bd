"""A consumer's memory, looked at while it sends."""

from __future__ import annotations

from itertools import count

from benchmarks import memory
from benchmarks.server import Server
from tests.databases import Databases


def test_memory_is_looked_at_after_each_tenth(databases: Databases) -> None:
    """And each e-mail arrives once."""
    line = memory.measure(Server(databases.url, "any", count(1)), 50)
    tenths = line.figures["after each tenth"].values
    assert len(tenths) == 10
    assert line.ratios["last / first"].values == [tenths[-1] / tenths[0]]
    assert line.figures["peak"].median >= max(tenths)
