"""Text that is shown to people: masked, one line, bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.email.masking import mask_address, mask_addresses, presentable


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("jane@example.com", "j***@e***"),
        ("jörg@bücher.example", "j***@b***"),
        ('"a@b"@c.example', '"***@c***'),
        ("nothing", "***@n***"),
        ("", "***@***"),
    ],
)
def test_a_masked_address_is_a_hint_only(address: str, masked: str) -> None:
    """First letters, no more."""
    assert mask_address(address) == masked


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Invalid `to`: jane@example.com.", "Invalid `to`: j***@e***"),
        ("<jane@example.com>, joe@x.example", "<j***@e***>, j***@x***"),
        ("?to=jane%40example.com&x", "?to=j***@e***"),
        ("to:jörg@example.com", "to:j***@e***"),
        ("@ nobody @", "@ nobody @"),
    ],
)
def test_every_address_in_a_text_is_masked(text: str, masked: str) -> None:
    """Wherever it stands."""
    assert mask_addresses(text) == masked


def test_what_is_presented_is_one_harmless_line() -> None:
    """No NUL, no escapes for terminals, no bidirectional override, no half character."""
    text = "a\0b\x1b]0;x\x07\r\nc\u202ed\ud800e\u2028f\t g"
    assert presentable(text, 500) == "ab]0;x cde f g"


def test_an_address_cut_by_the_limit_is_not_shown_in_part() -> None:
    """Neither where reading stops nor where writing does."""
    assert "jane" not in presentable("x" * 990 + " jane.doe@example.com", 500)
    assert "someone" not in presentable("someone.with.a.name@example.com " * 60, 500)
    assert "jane.doe" not in presentable("x " * 497 + "jane.doe.the.first@example.com", 500)


@given(st.text(max_size=1500))
def test_what_is_presented_is_always_short_and_printable(text: str) -> None:
    """For any text."""
    shown = presentable(text, 500)
    assert len(shown) <= 500
    assert all(character.isprintable() for character in shown)
