"""The shop's e-mails: a message is a function of its payload."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.gateway import Unrenderable
from shop_example.emails import emails

PAYLOAD: dict[str, Any] = {
    "order_id": 102,
    "placed_at": "2026-03-05T14:30:00+00:00",
    "customer": {"name": "Grace O'Neill <3", "email": "grace@example.com"},
    "lines": [
        {"product": "Teapot", "quantity": 1, "unit_price": "49.90", "total": "49.90"},
        {"product": "Tea & honey", "quantity": 2, "unit_price": "8.20", "total": "16.40"},
    ],
    "total": "66.30",
    "currency": "EUR",
}


def test_an_order_confirmation_says_what_was_ordered() -> None:
    """Who, what, how many, and how much, in both parts."""
    message = emails.render("email.order_confirmation", PAYLOAD)
    assert [address.address for address in message.to] == ["grace@example.com"]
    assert message.subject == "Your order 102"
    for part in (message.text, message.html):
        assert part is not None
        for words in ("102", "5 March 2026", "Teapot", "49.90", "16.40", "8.20", "66.30", "EUR"):
            assert words in part


def test_html_is_escaped_and_text_is_not() -> None:
    """A customer's name is text wherever it stands."""
    message = emails.render("email.order_confirmation", PAYLOAD)
    assert message.html is not None
    assert message.text is not None
    assert "O&#39;Neill &lt;3" in message.html
    assert "Tea &amp; honey" in message.html
    assert "O'Neill <3" in message.text


def test_the_same_payload_makes_the_same_message() -> None:
    """Nothing but the payload goes into it."""
    first, second = (emails.render("email.order_confirmation", PAYLOAD) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("field", list(PAYLOAD))
def test_a_payload_without_a_field_is_unrenderable(field: str) -> None:
    """The job is dead with the reason, instead of an e-mail with a hole in it."""
    rest = {name: value for name, value in PAYLOAD.items() if name != field}
    with pytest.raises(Unrenderable, match=field):
        emails.render("email.order_confirmation", rest)


def test_a_field_of_a_newer_shop_does_no_harm() -> None:
    """An older consumer sends what it knows of."""
    message = emails.render("email.order_confirmation", {**PAYLOAD, "gift_wrap": True})
    assert message.subject == "Your order 102"
