"""What a target reads of a run, and its verdict."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import KINDS
from benchmarks.targets import TARGETS, Target
from tests.benchmarks.lines import line

AT_LEAST = Target("flat", "flat", "ten rounds", "last / first", at_least=0.9)
AT_MOST = Target("cost", "cost", "per e-mail", "statements", at_most=0.2)


@pytest.mark.parametrize(
    ("target", "value", "met"),
    [
        (AT_LEAST, 0.9, True),
        (AT_LEAST, 0.899, False),
        (AT_MOST, 0.2, True),
        (AT_MOST, 0.201, False),
    ],
)
def test_a_target_is_met_at_its_bound_and_missed_beyond(
    target: Target, value: float, met: bool
) -> None:
    """At least, and at most."""
    assert target.met(value) is met


def test_a_bound_is_written_for_people() -> None:
    """With its direction."""
    assert AT_LEAST.bound == ">= 0.9"
    assert AT_MOST.bound == "<= 0.2"
    assert Target("", "", "", "", at_least=15_000).bound == ">= 15,000"


def test_a_target_reads_its_ratio_from_the_last_line_of_its_kind_and_case() -> None:
    """An earlier line, another kind and another case are passed over."""
    lines = [
        line("flat", "ten rounds of 50000", {"last / first": 0.5}),
        line("flat", "ten rounds of 50000", {"last / first": 0.95}),
        line("drain", "ten rounds of 50000", {"last / first": 0.1}),
        line("flat", "trickle", {"last / first": 0.2}),
    ]
    assert AT_LEAST.measured(lines) == 0.95


def test_a_target_reads_a_figure_where_there_is_no_such_ratio() -> None:
    """The median of its rounds."""
    assert Target("", "drain", "", "rate", at_least=1).measured([line("drain", "any")]) == 200


def test_what_was_not_measured_has_no_value() -> None:
    """Neither without a line nor without the name in it."""
    assert AT_LEAST.measured([]) is None
    assert AT_LEAST.measured([line("flat", "ten rounds of 50000")]) is None


def test_each_target_has_one_bound_and_speaks_of_a_kind_that_is_measured() -> None:
    """A misspelt one would be reported as not measured for ever."""
    for target in TARGETS:
        assert (target.at_least is None) != (target.at_most is None), target.what
        assert target.kind in KINDS, target.what
