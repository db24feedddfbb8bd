"""Taking turns: every contender of a comparison once a round, so that noise meets all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

#: A figure, or several that were measured in one go.
Value = TypeVar("Value")


def in_turns(contenders: Mapping[str, Callable[[], Value]], rounds: int) -> dict[str, list[Value]]:
    """Run all contenders ``rounds`` times, beginning with another one each round."""
    names = list(contenders)
    values: dict[str, list[Value]] = {name: [] for name in names}
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            values[name].append(contenders[name]())
    return values
