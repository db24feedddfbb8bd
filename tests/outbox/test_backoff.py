"""The wait between tries: doubling, capped, spread."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.backoff import Backoff


def never() -> float:
    """The dice's lowest throw: no jitter."""
    return 0.0


def most() -> float:
    """The dice's highest throw."""
    return 1 - 2**-53


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [
        (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 320), (7, 600), (8, 600), (61, 600),
        (62, 600), (1_023, 600), (1_024, 600), (1_025, 600), (1_100, 600), (10**12, 600),
    ],
)  # fmt: skip
def test_it_doubles_up_to_the_cap_however_many_failures_there_were(
    failures: int, seconds: float
) -> None:
    """Also after 1,100 failures, where 2.0 ** failures would overflow (case-61)."""
    assert Backoff().delay_seconds(failures, never) == seconds


@pytest.mark.parametrize("failures", [0, -1])
def test_no_failure_waits_as_long_as_one(failures: int) -> None:
    """A caller that counts from zero gets the first wait, not half of it."""
    assert Backoff().delay_seconds(failures, never) == 10


def test_the_jitter_takes_up_to_a_fifth_off() -> None:
    """So the cap is never exceeded, and nobody comes back much too early."""
    assert Backoff().delay_seconds(1, most) == pytest.approx(8)
    assert Backoff().delay_seconds(1, lambda: 0.5) == pytest.approx(9)
    assert Backoff().delay_seconds(100, most) == pytest.approx(480)


def test_a_base_above_the_cap_is_cut_down_to_it() -> None:
    """The cap has the last word."""
    assert Backoff(base_seconds=100, max_seconds=30).delay_seconds(1, never) == 30


def test_jobs_that_failed_together_come_back_apart() -> None:
    """Of a hundred jobs hardly two get the same wait."""
    assert len({Backoff().delay_seconds(1) for _ in range(100)}) > 90


@given(
    base=st.floats(0.001, 86_400),
    cap=st.floats(0.001, 604_800),
    failures=st.integers(-10, 10_000),
    throw=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=100, deadline=None)
def test_it_is_bounded_and_never_shrinks(
    base: float, cap: float, failures: int, throw: float
) -> None:
    """Between four fifths of the first wait and the cap; more failures never wait less."""
    backoff = Backoff(base, cap)
    delay = backoff.delay_seconds(failures, lambda: throw)
    assert 0.8 * min(base, cap) <= delay <= cap
    assert backoff.delay_seconds(failures + 1, lambda: throw) >= delay
