"""Retry-After: seconds, a date by the answer's own clock, or nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.email.retry_after import retry_after_seconds

NOON = "Mon, 30 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "999999999"}, 999999999.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:30 GMT", "date": NOON}, 90.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT", "date": NOON}, 0.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:30 GMT"}, None),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:30 GMT", "date": "yesterday"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "9" * 5000}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
)
def test_the_wait_that_an_answer_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    """Readable or ignored."""
    assert retry_after_seconds(headers) == seconds


@given(st.text(max_size=40), st.text(max_size=40))
def test_garbage_is_ignored(value: str, date: str) -> None:
    """No header breaks the reading, and no wait is negative."""
    seconds = retry_after_seconds({"retry-after": value, "date": date})
    assert seconds is None or seconds >= 0
