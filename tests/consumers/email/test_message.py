"""Messages: what is carried unchanged, what is refused, and that refusals quote nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.email.message import Address, InvalidMessage, Message
from consumers.email.providers.resend import encode

SENDER = Address("orders@shop.example", "Shop")
SECRET = "jane@example.com"


def message(**given: Any) -> Message:
    """A message that is complete but for what is given."""
    return Message(**({"to": SECRET, "subject": "Hello", "text": "Hi"} | given))


@pytest.mark.parametrize(
    "text",
    [
        "jörg@example.com",
        "\u200ba@example.com",
        "a@xn--bcher-kva.example",
        "a@bücher.example",
        "o'brien+tag@example.com",
        "a" * 308 + "@example.com",
    ],
)
def test_unusual_addresses_are_carried_unchanged(text: str) -> None:
    """Whether a mailbox exists, invisible characters or not, is for the provider to say."""
    body = json.loads(encode(message(to=text), SENDER))
    assert body["to"] == [text]


@pytest.mark.parametrize(
    "text",
    [
        "a@b.com\r\nBcc: c@d.com",
        "a@b.com\n",
        " a@b.com",
        "a@b.com ",
        "a b@example.com",
        "a@b.com,c@d.com",
        "a@b.com;c@d.com",
        "Evil, Name <a@b.com>",
        "alice@example.org)bob@evil.com",
        "a@b@c.com",
        "a\x00@b.com",
        "a\u2028@b.com",
        "a\ud800@b.com",
        "no-at-sign",
        "@b.com",
        "a@",
        "",
        "<a@b.com",
        "Jane <a@b.com> x",
        "Jane <a@b.com>, Joe <c@d.com>",
        '"Jane <a@b.com>',
        "Jane\r\nBcc: x <a@b.com>",
        "a" * 309 + "@example.com",
        "x" * 5000,
    ],
)
def test_an_address_that_could_be_read_in_two_ways_is_refused_without_quoting_it(text: str) -> None:
    """Injection, lists, and texts that parsers disagree about."""
    with pytest.raises(InvalidMessage) as caught:
        message(to=("ok@example.com", text))
    assert caught.value.field == "to[1]"
    assert "b.com" not in str(caught.value)
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("jane@example.com", Address("jane@example.com")),
        ("Jane Doe <jane@example.com>", Address("jane@example.com", "Jane Doe")),
        ("<jane@example.com>", Address("jane@example.com")),
        ('"Doe, Jane" <jane@example.com>', Address("jane@example.com", "Doe, Jane")),
        (r'"a \"b\" \\" <jane@example.com>', Address("jane@example.com", 'a "b" \\')),
        ("🎂 Jörg <jörg@example.com>", Address("jörg@example.com", "🎂 Jörg")),
    ],
)
def test_addresses_with_a_name_are_read_exactly(text: str, address: Address) -> None:
    """The three forms, with quoting."""
    assert Address.parse(text) == address


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=80),
    st.from_regex(r"[a-z0-9.+é]{1,20}@[a-z0-9ü]{1,20}\.example", fullmatch=True),
)
def test_an_address_survives_being_written_and_read(name: str, address: str) -> None:
    """Whatever the name holds: commas, quotes, backslashes, spaces, emoji."""
    written = Address(address, name)
    assert Address.parse(str(written)) == written


@given(st.text(max_size=60))
def test_no_text_becomes_two_recipients_or_a_second_header(text: str) -> None:
    """An accepted text has one address, and nothing in it could end a header line."""
    try:
        parsed = Address.parse(text)
    except InvalidMessage:
        return
    assert parsed.address.count("@") == 1
    assert not set(str(parsed)) & set("\r\n\0\u2028\u2029\x85\x0b\x0c")


def test_emoji_in_names_and_subjects_are_carried_unchanged() -> None:
    """The body is UTF-8, not escapes."""
    sent = message(to=Address(SECRET, "🎂 Jörg"), subject="Your order 🎉")
    body = encode(sent, SENDER)
    assert "🎂 Jörg <jane@example.com>".encode() in body
    assert "Your order 🎉".encode() in body


@pytest.mark.parametrize(
    "character",
    ["\r", "\n", "\t", "\0", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029", "\ud83d"],
)
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("subject", lambda text: {"subject": text}),
        ("headers.X-Kind", lambda text: {"headers": {"X-Kind": text}}),
        ("name", lambda text: {"to": Address(SECRET, text)}),
        ("headers", lambda text: {"headers": {f"X{text}": "a"}}),
        ("tags", lambda text: {"tags": {f"x{text}": "a"}}),
        ("tags.kind", lambda text: {"tags": {"kind": text}}),
    ],
)
def test_nothing_that_ends_a_line_goes_into_a_header(
    field: str, given: Any, character: str
) -> None:
    """Line ends, controls and half characters, in every field that becomes a header."""
    with pytest.raises(InvalidMessage) as caught:
        message(**given(f"Hello{character}Bcc: c@d.com"))
    assert caught.value.field == field
    assert "Bcc" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"to": ()}, "to"),
        ({"to": ("a@b.example",) * 51}, "to"),
        ({"to": ("a@b.example",) * 1000}, "to"),
        ({"cc": ("a@b.example",) * 50}, "to"),
        ({"bcc": "nobody"}, "bcc"),
        ({"reply_to": "a@b.example, c@d.example"}, "reply_to"),
        ({"to": 7}, "to"),
        ({"to": (7,)}, "to[0]"),
        ({"subject": ""}, "subject"),
        ({"subject": "  "}, "subject"),
        ({"subject": "x" * 999}, "subject"),
        ({"subject": None}, "subject"),
        ({"text": None}, "text"),
        ({"text": ""}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"html": "\ud800"}, "html"),
        ({"html": b"x"}, "html"),
        ({"headers": {"Bcc": "c@d.example"}}, "headers.Bcc"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "headers.x-a"),
        ({"headers": {"": "1"}}, "headers"),
        ({"headers": {f"X-{n}": "1" for n in range(51)}}, "headers"),
        ({"headers": {"X-A": 7}}, "headers.X-A"),
        ({"tags": {"order": "102 "}}, "tags.order"),
        ({"tags": {"order": ""}}, "tags.order"),
        ({"tags": {str(n): "1" for n in range(51)}}, "tags"),
    ],
)
def test_a_message_that_cant_be_sent_is_refused_when_it_is_made(given: Any, field: str) -> None:
    """With the field's name."""
    with pytest.raises(InvalidMessage) as caught:
        message(**given)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_fifty_recipients_are_fine() -> None:
    """The limit itself is allowed."""
    sent = message(to=("a@b.example",) * 30, cc=("a@b.example",) * 10, bcc=["a@b.example"] * 10)
    assert len(sent.to) + len(sent.cc) + len(sent.bcc) == 50


def test_bodies_keep_their_lines() -> None:
    """Line breaks, tabs and separators belong into a text."""
    text = "a\r\nb\tc\u2028d"
    assert message(text=text).text == text


def test_what_is_printed_of_a_message_names_nobody() -> None:
    """A message or an address in a log or traceback is masked."""
    sent = message(to=Address(SECRET, "Jane Doe"), text="your password is 123")
    for shown in (repr(sent), repr(sent.to), str(sent)):
        assert SECRET not in shown
        assert "Jane Doe" not in shown
        assert "123" not in shown
    assert repr(sent) == "Message(to=j***@e***)"


def test_a_message_does_not_change_with_what_it_was_made_of() -> None:
    """The headers and tags are copies, and can't be written to."""
    headers = {"X-A": "1"}
    sent = message(headers=headers)
    headers["X-A"] = "2"
    assert dict(sent.headers) == {"X-A": "1"}
    with pytest.raises(TypeError):
        sent.headers["X-A"] = "3"  # type: ignore[index]
