"""What the mail-service takes for a mail, and the words in which it refuses the rest."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shop_example.mail_service import mail
from shop_example.mail_service.mail import Refused
from tests.shop_example.mail_client import email


def refusal_of(values: object) -> tuple[int, str, str]:
    """Status, name and message with which a body is refused."""
    body = values if isinstance(values, bytes) else json.dumps(values).encode()
    with pytest.raises(Refused) as refused:
        mail.check(mail.parse(body), body)
    answer = json.loads(refused.value.answer.body)
    return answer["statusCode"], answer["name"], answer["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'"mail"',
        b"{",
        b"\xff\xfe{\x00}\x00",
        b'{"x": NaN}',
        b'{"a":' * 100_000,
        b'{"x":' + b"[" * 80 + b"]" * 80 + b"}",
        b'{"x":' + b"9" * 5_000 + b"}",
    ],
    ids=["empty", "list", "string", "torn", "utf-16", "nan", "bottomless", "deep", "huge number"],
)
def test_a_body_that_is_no_json_object_is_a_400(body: bytes) -> None:
    """Whatever the bytes are, they end as a validation error and not as a crash."""
    assert refusal_of(body)[:2] == (400, "validation_error")


@pytest.mark.parametrize("field", ["from", "to", "subject"])
@pytest.mark.parametrize("value", [None, "", []])
def test_a_missing_field_is_named(field: str, value: object) -> None:
    """422 missing_required_field for an absent, null or empty field."""
    assert refusal_of({**email(), field: value}) == (
        422,
        "missing_required_field",
        f"Missing `{field}` field.",
    )


def test_a_mail_needs_a_body() -> None:
    """Neither html nor text: 422 validation_error."""
    status, name, message = refusal_of(email(html=None, text=None))
    assert (status, name, message) == (
        422,
        "validation_error",
        "Missing `html` or `text` field.",
    )


@pytest.mark.parametrize(
    "to",
    [
        "ada",
        "ada@",
        "@example.com",
        "ada@example",
        "ada @example.com",
        "ada@example.com\n",
        "ada@example.com, bob@example.com",
        "Evil, Name <ada@example.com>",
        "Ada <ada@example.com",
        "\uff41da@example.com",
        "a" * 65 + "@example.com",
        ["ada@example.com", "bob"],
        [["ada@example.com"]],
        7,
        {"email": "ada@example.com"},
    ],
)
def test_a_malformed_recipient_is_refused(to: object) -> None:
    """422 validation_error that names the field and not the address."""
    status, name, message = refusal_of(email(to=to))
    assert (status, name) == (422, "validation_error")
    assert "`to`" in message
    assert "ada" not in message


@pytest.mark.parametrize(
    "to",
    [
        "ada@example.com",
        "Ada <ada@example.com>",
        '"Lovelace, Ada" <ada@example.com>',
        "Ada Ünlü <ada+orders@mail.example.co.uk>",
        "<ada@example.com>",
        ["ada@example.com", "Bob <bob@example.com>"],
        ["ada@example.com"] * 50,
    ],
)
def test_recipients_may_have_names(to: object) -> None:
    """One or up to fifty, bare or with a display name."""
    body = json.dumps(email(to=to)).encode()
    assert mail.check(mail.parse(body), body).line == body


def test_more_than_fifty_recipients_are_too_many() -> None:
    """Resend's limit."""
    status, name, message = refusal_of(email(to=["ada@example.com"] * 51))
    assert (status, name) == (422, "validation_error")
    assert "50" in message


@pytest.mark.parametrize("domain", ["refused.example", "REFUSED.example", "mail.refused.example"])
@pytest.mark.parametrize("field", ["to", "cc", "bcc"])
def test_the_refused_domain_takes_no_mail(domain: str, field: str) -> None:
    """Addresses at refused.example are this service's refused recipients."""
    status, name, message = refusal_of({**email(), field: f"Ada <ada@{domain}>"})
    assert (status, name) == (422, "validation_error")
    assert message.startswith(f"Invalid `{field}` field.")


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"from_": "shop"}, "validation_error"),
        ({"subject": 7}, "validation_error"),
        ({"subject": "a\nb"}, "validation_error"),
        ({"html": ["<p>"]}, "validation_error"),
        ({"text": {"a": 1}}, "validation_error"),
        ({"tags": "effect"}, "validation_error"),
        ({"tags": [{"name": "effect", "value": "a b"}]}, "validation_error"),
        ({"tags": [{"name": "effect"}]}, "validation_error"),
        ({"tags": ["effect"]}, "validation_error"),
        ({"tags": [{"name": "effect", "value": "x" * 257}]}, "validation_error"),
        ({"headers": ["X-Effect"]}, "validation_error"),
        ({"headers": {"X-Effect": "a\r\nBcc: eve@example.com"}}, "validation_error"),
        ({"headers": {"X-Effect": 7}}, "validation_error"),
        ({"attachments": [{"filename": "a.pdf"}]}, "invalid_attachment"),
        ({"attachments": "a.pdf"}, "invalid_attachment"),
        ({"reply_to": "nobody"}, "validation_error"),
    ],
)
def test_a_field_of_the_wrong_form_is_refused(changes: dict[str, object], name: str) -> None:
    """422 and the documented name."""
    assert refusal_of(email(**changes))[:2] == (422, name)


def test_everything_that_resend_documents_is_accepted() -> None:
    """All optional fields at once."""
    values = email(
        cc="bob@example.com",
        bcc=["eve@example.com"],
        reply_to="Help <help@shop.example>",
        headers={"X-Effect-Key": "email-order-7"},
        tags=[{"name": "effect", "value": "email-order-7"}],
        attachments=[{"filename": "a.txt", "content": "YQ=="}],
        scheduled_at="in 1 min",
    )
    body = json.dumps(values).encode()
    assert mail.check(mail.parse(body), body).line == body


def test_the_fingerprint_sees_through_form_and_not_through_content() -> None:
    """Key order, whitespace, nulls and one address in a list don't count; all else does."""
    first = email(to="ada@example.com")
    same = dict(reversed(email(to=["ada@example.com"]).items())) | {"cc": None}
    assert mail.fingerprint(first) == mail.fingerprint(same)
    for other in (
        email(to="bob@example.com"),
        email(to=["ada@example.com", "bob@example.com"]),
        email(subject="Your order 8"),
        email(tags=[]),
    ):
        assert mail.fingerprint(other) != mail.fingerprint(first)


def test_a_mail_on_several_lines_is_recorded_on_one() -> None:
    """Pretty-printed JSON must not break the record's lines."""
    body = json.dumps(email(), indent=2).encode()
    line = mail.check(mail.parse(body), body).line
    assert b"\n" not in line
    assert json.loads(line) == email()


JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [*email(), "cc", "bcc", "reply_to", "headers", "tags", "attachments", "scheduled_at", "other"]
)


@settings(deadline=None)
@given(changes=st.dictionaries(FIELDS, JSON))
def test_any_json_is_either_a_mail_or_refused(changes: dict[str, object]) -> None:
    """No field can make the checks fail in another way, and a mail is recorded as it was sent."""
    values = {**email(), **changes}
    body = json.dumps(values).encode()
    try:
        checked = mail.check(mail.parse(body), body)
    except Refused:
        return
    assert json.loads(checked.line) == values
    assert checked.fingerprint == mail.fingerprint(values)


@settings(deadline=None)
@given(body=st.binary())
def test_any_bytes_are_either_a_mail_or_refused(body: bytes) -> None:
    """Nor can a body that was never JSON."""
    with pytest.raises(Refused):
        mail.check(mail.parse(body), body)
