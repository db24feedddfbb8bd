"""Foreign text and times, as people see them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from outbox.commands.answer import as_json
from outbox.commands.options import parse_moment
from outbox.commands.wording import duration, masked, moment
from outbox.legible import legible


@given(st.text(st.characters()))
def test_no_text_can_steer_a_terminal(text: str) -> None:
    """Whatever it holds, what comes out is printable and can be encoded."""
    shown = legible(text)
    assert all(
        character == " " or character.isprintable() or character.isspace() for character in shown
    )
    assert "\x1b" not in shown
    shown.encode()


@given(st.text(st.characters(codec="utf-8")))
def test_json_is_ascii_without_control_characters(text: str) -> None:
    """A line of JSON is safe to print, and holds the text as it was, addresses apart."""
    line = as_json({"text": text})
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["text"] == masked(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to jane@example.com: refused", "to ***@***: refused"),
        ("<jane.doe+x@mail.example.com>", "<***@***>"),
        ("jane%40example.com", "***@***"),
        ("at 5 @ noon", "at 5 @ noon"),
    ],
)
def test_addresses_are_masked(text: str, shown: str) -> None:
    """An address in a provider's sentence names nobody."""
    assert masked(text) == shown


def test_moments_are_utc_to_the_second() -> None:
    """One zone for everybody."""
    there = timezone(timedelta(hours=9))
    assert moment(datetime(2026, 1, 31, 8, 0, 1, 5, there)) == "2026-01-30 23:00:01Z"
    assert moment(None) == ""


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.4, "0s"), (59, "59s"), (60, "1m"), (3661, "1h 1m"), (90_000, "1d 1h"), (None, "")],
)
def test_durations_have_two_units_at_most(seconds: float | None, shown: str) -> None:
    """A person needs no more."""
    assert duration(seconds) == shown


def test_times_are_read_with_and_without_a_zone() -> None:
    """UTC where none is given; an age counts back from now."""
    assert parse_moment("2026-01-31T08:00") == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert parse_moment("2026-01-31T08:00:00Z") == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert parse_moment("2026-01-31T08:00+02:00") == datetime(2026, 1, 31, 6, tzinfo=UTC)
    assert abs(datetime.now(UTC) - timedelta(hours=2) - parse_moment("2h")) < timedelta(seconds=5)


@pytest.mark.parametrize("text", ["", "yesterday", "2h30", "-1d", "2026-13-01", "9999999d"])
def test_what_is_no_time_is_refused(text: str) -> None:
    """With what a time looks like."""
    with pytest.raises(typer.BadParameter, match="2026-01-31"):
        parse_moment(text)
