"""What a refused message says, word for word: which field, what is wrong, and never the value."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.email.message import Address, InvalidMessage, Message

A, B = "a@example.com", "b@example.com"
ONE_ADDRESS = "must be one address: name@host or Name <name@host>"
TAG = "may hold letters, digits, _ and - only"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"to": ()}, "to: needs at least one address"),
        ({"to": 7}, "to: must be an address or several, not int"),
        ({"to": (A, 7)}, "to[1]: must be a text or an Address, not int"),
        ({"to": (A, "b")}, f"to[1]: address: {ONE_ADDRESS}"),
        ({"to": "b"}, f"to: address: {ONE_ADDRESS}"),
        ({"to": "x" * 833}, "to: address: is too long"),
        ({"to": "B <b>"}, "to: address: must be one address of the form name@host"),
        ({"to": f"B <{'b' * 330}@example.com>"}, "to: address: longer than 320 characters"),
        ({"to": (A,) * 51}, "to: more than 50 addresses"),
        ({"cc": "b"}, f"cc: address: {ONE_ADDRESS}"),
        ({"bcc": "b"}, f"bcc: address: {ONE_ADDRESS}"),
        ({"reply_to": "b"}, f"reply_to: address: {ONE_ADDRESS}"),
        ({"to": (A,) * 50, "bcc": B}, "to: more than 50 recipients with cc and bcc"),
        ({"to": (A,) * 49, "cc": B, "bcc": B}, "to: more than 50 recipients with cc and bcc"),
        ({"subject": " "}, "subject: is empty"),
        ({"subject": 7}, "subject: must be a text, not int"),
        ({"subject": "x" * 999}, "subject: longer than 998 characters"),
        ({"subject": "a\nb"}, "subject: holds U+000A, which no header line may"),
        ({"text": None}, "text: a message needs a text or an html part"),
        ({"text": 7}, "text: must be a text, not int"),
        ({"html": b"x"}, "html: must be a text, not bytes"),
        ({"text": "a\0"}, "text: holds U+0000, which can't be sent"),
        ({"text": "\ud800\udfff"}, "text: holds U+D800, which can't be sent"),
        ({"headers": {f"X-{n}": "v" for n in range(51)}}, "headers: more than 50"),
        (
            {"headers": {"X Y": "v"}},
            "headers: a name must be a header name, such as X-Order-Kind",
        ),
        ({"headers": {"To": "v"}}, "headers.To: is a field of its own, or given twice"),
        (
            {"headers": {"X-A": "v", "x-a": "v"}},
            "headers.x-a: is a field of its own, or given twice",
        ),
        ({"headers": {"X-A": "\r"}}, "headers.X-A: holds U+000D, which no header line may"),
        ({"tags": {f"n{n}": "v" for n in range(51)}}, "tags: more than 50"),
        ({"tags": {"a b": "v"}}, f"tags: a name {TAG}"),
        ({"tags": {"a": "v w"}}, f"tags.a: {TAG}, 1 to 256"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "given",
)
def test_a_refusal_names_the_field_and_the_problem(given: dict[str, Any], said: str) -> None:
    """A developer reads it once, in a log, without the payload at hand."""
    with pytest.raises(InvalidMessage) as refused:
        Message(**({"to": A, "subject": "Hello", "text": "Hi"} | given))
    assert str(refused.value) == said
    assert refused.value.field == said.partition(":")[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("b",), "address: must be one address of the form name@host"),
        ((A, 7), "name: must be a text, not int"),
        ((A, "x" * 257), "name: longer than 256 characters"),
        ((7,), "address: must be a text, not int"),
    ],
    ids=str,
)
def test_an_address_says_what_is_wrong_with_it(given: tuple[Any, ...], said: str) -> None:
    """By itself, without a message around it."""
    with pytest.raises(InvalidMessage) as refused:
        Address(*given)
    assert str(refused.value) == said
    assert refused.value.field == said.partition(":")[0]


def test_what_is_just_short_enough_is_taken() -> None:
    """At each limit, one less than too much."""
    longest = f"{'b' * 308}@example.com"
    named = f'"{"n" * 256}"{" " * 252}<{longest}>'
    assert len(named) == 320 + 2 * 256
    assert Address.parse(named) == Address(longest, "n" * 256)
    full = Message(
        (A,) * 48, "s" * 998, "Hi", cc=A, bcc=A,
        headers={f"X-{n}": "v" for n in range(50)}, tags={f"n{n}": "v" for n in range(50)},
    )  # fmt: skip
    assert (len(full.headers), len(full.tags)) == (50, 50)


def test_quotes_and_backslashes_in_a_name_are_escaped() -> None:
    """And nothing else is."""
    assert str(Address(A, 'J. "Jo" \\ Doe')) == f'"J. \\"Jo\\" \\\\ Doe" <{A}>'


def test_all_recipients_are_shown_masked() -> None:
    """Each, with a comma between."""
    shown = repr(Message((A, B), "Hello", "Hi"))
    assert shown.count(", ") == 1
    assert "X" not in shown
    assert A not in shown
