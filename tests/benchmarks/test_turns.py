"""Contenders take turns."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.turns import in_turns


def test_each_round_begins_with_another_contender() -> None:
    """Every contender is measured once a round, and its values are in the order of the rounds."""
    order: list[str] = []

    def contender(name: str) -> Callable[[], float]:
        def measure() -> float:
            order.append(name)
            return float(len(order))

        return measure

    values = in_turns({name: contender(name) for name in "abc"}, rounds=4)
    assert "".join(order) == "abcbcacababc"
    assert values == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}
