"""Resend's protocol: the exact request, and what each documented answer means."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.email.message import Address, Message
from consumers.email.providers import PROVIDERS
from consumers.email.providers.resend import FACTS, RESEND, classify, encode, headers
from outbox.outcome import Meaning

SENDER = Address("orders@shop.example", "Shop")


def error(name: str, message: str = "Because.") -> bytes:
    """An error in Resend's shape."""
    return json.dumps({"statusCode": 0, "name": name, "message": message}).encode()


# -- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "name", "meaning"),
    [
        (400, "invalid_idempotency_key", Meaning.REFUSED),
        (400, "validation_error", Meaning.REFUSED),
        (401, "missing_api_key", Meaning.MISCONFIGURED),
        (401, "restricted_api_key", Meaning.MISCONFIGURED),
        (401, "validation_error", Meaning.MISCONFIGURED),
        (403, "invalid_api_key", Meaning.MISCONFIGURED),
        (403, "invalid_api_Key", Meaning.MISCONFIGURED),
        (403, "suspended_api_key", Meaning.MISCONFIGURED),
        (403, "invalid_permission", Meaning.MISCONFIGURED),
        (403, "invalid_from_address", Meaning.MISCONFIGURED),
        (422, "invalid_from_address", Meaning.MISCONFIGURED),
        (403, "validation_error", Meaning.MISCONFIGURED),
        (404, "not_found", Meaning.MISCONFIGURED),
        (405, "method_not_allowed", Meaning.MISCONFIGURED),
        (409, "invalid_idempotent_request", Meaning.KEY_TAKEN),
        (409, "concurrent_idempotent_requests", Meaning.IN_PROGRESS),
        (409, "resource_locked", Meaning.IN_PROGRESS),
        (409, "something_new", Meaning.FAILED),
        (409, "validation_error", Meaning.FAILED),
        (422, "validation_error", Meaning.REFUSED),
        (422, "missing_required_field", Meaning.REFUSED),
        (422, "missing_required_parameter", Meaning.REFUSED),
        (422, "invalid_attachment", Meaning.REFUSED),
        (422, "invalid_parameter", Meaning.REFUSED),
        (422, "invalid_access", Meaning.REFUSED),
        (422, "invalid_region", Meaning.REFUSED),
        (429, "rate_limit_exceeded", Meaning.THROTTLED),
        (429, "daily_quota_exceeded", Meaning.MISCONFIGURED),
        (429, "monthly_quota_exceeded", Meaning.MISCONFIGURED),
        (429, "something_new", Meaning.THROTTLED),
        (451, "security_error", Meaning.REFUSED),
        (500, "application_error", Meaning.FAILED),
        (500, "internal_server_error", Meaning.FAILED),
        (503, "service_unavailable", Meaning.UNAVAILABLE),
        # Where status and name disagree, a 4xx goes by the name and a 5xx stays open.
        (400, "rate_limit_exceeded", Meaning.THROTTLED),
        (422, "invalid_idempotent_request", Meaning.KEY_TAKEN),
        (500, "validation_error", Meaning.FAILED),
        (403, "something_new", Meaning.REFUSED_BARE),
        (404, "something_new", Meaning.REFUSED_BARE),
    ],
)
def test_each_documented_error_has_its_meaning(status: int, name: str, meaning: Meaning) -> None:
    """By name where it has one, else by status."""
    answer = classify(status, {}, error(name))
    assert answer.meaning is meaning
    assert answer.reason == f"http_{status} {name.lower()}"
    assert answer.detail == "Because."


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (100, Meaning.FAILED),
        (101, Meaning.FAILED),
        (300, Meaning.MISCONFIGURED),
        (301, Meaning.MISCONFIGURED),
        (304, Meaning.MISCONFIGURED),
        (307, Meaning.MISCONFIGURED),
        (400, Meaning.REFUSED),
        (401, Meaning.MISCONFIGURED),
        (402, Meaning.MISCONFIGURED),
        (403, Meaning.REFUSED_BARE),
        (404, Meaning.REFUSED_BARE),
        (405, Meaning.MISCONFIGURED),
        (407, Meaning.MISCONFIGURED),
        (408, Meaning.UNAVAILABLE),
        (409, Meaning.FAILED),
        (410, Meaning.REFUSED_BARE),
        (413, Meaning.REFUSED),
        (415, Meaning.REFUSED_BARE),
        (421, Meaning.UNAVAILABLE),
        (422, Meaning.REFUSED),
        (425, Meaning.UNAVAILABLE),
        (429, Meaning.THROTTLED),
        (451, Meaning.REFUSED_BARE),
        (499, Meaning.FAILED),
        (500, Meaning.FAILED),
        (502, Meaning.FAILED),
        (503, Meaning.UNAVAILABLE),
        (504, Meaning.FAILED),
        (520, Meaning.FAILED),
        (600, Meaning.FAILED),
        (999, Meaning.FAILED),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>nginx</html>", b"[]", b"{", b"\xff\xfe"])
def test_an_answer_without_a_name_goes_by_its_status(
    status: int, meaning: Meaning, body: bytes
) -> None:
    """A page of a proxy hides no status."""
    answer = classify(status, {}, body)
    assert (answer.meaning, answer.reason, answer.detail) == (meaning, f"http_{status}", None)


@pytest.mark.parametrize("status", [400, 401, 403, 422])
def test_an_invalid_api_key_is_nobodys_job_whatever_the_status(status: int) -> None:
    """It comes under the name of a wrong field."""
    answer = classify(status, {}, error("validation_error", "API key is invalid"))
    assert answer.meaning is Meaning.MISCONFIGURED


@pytest.mark.parametrize("status", [200, 201, 202, 299])
def test_a_success_brings_the_id(status: int) -> None:
    """In any 2xx."""
    answer = classify(status, {}, b'{"id":"49a3999c-0ce1"}')
    assert (answer.meaning, answer.message_id) == (Meaning.ACCEPTED, "49a3999c-0ce1")
    assert answer.reason == f"http_{status}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"id"',
        b"<html></html>",
        b'{"id":null}',
        b'{"id":7}',
        b'{"id":""}',
        b'{"id":"a b"}',
        b'{"id":"\\u0000"}',
        b'{"id":"\xff"}',
        b'{"id":"\\ud800"}',
        b'{"id":"' + b"x" * 201 + b'"}',
        b'{"data":[{"id":"x"}]}',
        b"[" * 100_000,
        b'{"id":' + b"9" * 5000,
        b"\x1f\x8b\x08\x00",
    ],
)
@pytest.mark.parametrize("status", [200, 204])
def test_a_success_of_another_shape_is_accepted_and_unreadable(status: int, body: bytes) -> None:
    """Never a failure: that would invite a second e-mail."""
    answer = classify(status, {}, body)
    assert (answer.meaning, answer.message_id) == (Meaning.ACCEPTED_UNREADABLE, None)
    assert answer.reason == f"http_{status} unreadable"


def test_the_wait_that_is_asked_for_is_passed_on() -> None:
    """With a rate limit or an outage."""
    answer = classify(429, {"retry-after": "2"}, error("rate_limit_exceeded"))
    assert answer.retry_after_seconds == 2
    assert classify(503, {"retry-after": "soon"}, b"").retry_after_seconds is None


def test_the_providers_sentence_is_shown_without_addresses_and_harmful_characters() -> None:
    """It goes into the ledger and to an operator's terminal."""
    answer = classify(
        422, {}, error("validation_error", "Invalid `to`\0\x1b[2J: jane@example.com" + "x" * 900)
    )
    assert answer.detail is not None
    assert answer.detail.startswith("Invalid `to`[2J:")
    assert len(answer.detail) <= 500
    assert "jane" not in answer.detail


def test_an_unknown_name_is_made_harmless_and_short() -> None:
    """Reasons are labels: letters, digits and underscores, at most 60."""
    answer = classify(418, {}, error("New Error!\n<b>" + "x" * 500))
    assert answer.reason == "http_418 newerrorb" + "x" * 51


json_names = st.text() | st.sampled_from(["id", "name", "message"])
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(json_names, inner),
    max_leaves=8,
)


@given(
    st.integers(100, 999),
    st.dictionaries(st.sampled_from(["retry-after", "date"]), st.text()),
    st.binary() | json_values.map(lambda value: json.dumps(value).encode()),
)
def test_no_answer_breaks_the_reading(status: int, head: dict[str, str], body: bytes) -> None:
    """Whatever arrives, there is a meaning, a short reason and a bounded detail."""
    answer = classify(status, head, body)
    assert len(answer.reason) <= 70
    assert len(answer.detail or "") <= 500
    accepted = answer.meaning in {Meaning.ACCEPTED, Meaning.ACCEPTED_UNREADABLE}
    assert accepted == (200 <= status < 300)


# -- requests -------------------------------------------------------------------------------------


def test_the_request_is_exactly_this() -> None:
    """Order of fields, spacing and characters are part of the promise: repeats are compared."""
    message = Message(
        to=("jane@example.com", Address("joe@example.com", "Doe, Joe")),
        subject="Order 102 ✓",
        text="Thank you.\n",
        html="<p>Thank you.</p>",
        reply_to="help@shop.example",
        cc="cc@example.com",
        bcc="bcc@example.com",
        headers={"X-B": "2", "X-A": "1"},
        tags={"order": "102", "kind": "confirmation"},
    )
    assert encode(message, SENDER).decode() == (
        '{"from":"Shop <orders@shop.example>",'
        '"to":["jane@example.com","\\"Doe, Joe\\" <joe@example.com>"],'
        '"subject":"Order 102 ✓","text":"Thank you.\\n","html":"<p>Thank you.</p>",'
        '"cc":["cc@example.com"],"bcc":["bcc@example.com"],"reply_to":["help@shop.example"],'
        '"headers":{"X-A":"1","X-B":"2"},'
        '"tags":[{"name":"kind","value":"confirmation"},{"name":"order","value":"102"}]}'
    )


def test_empty_fields_are_left_out() -> None:
    """The smallest request."""
    message = Message(to="a@b.example", subject="s", text="t")
    assert encode(message, Address("s@b.example")) == (
        b'{"from":"s@b.example","to":["a@b.example"],"subject":"s","text":"t"}'
    )


def test_the_order_in_which_headers_and_tags_were_given_changes_no_byte() -> None:
    """A dict built in another order is the same message."""
    one, other = (
        Message("a@b.example", "s", "t", headers=dict(pairs), tags=dict(pairs))
        for pairs in ([("a", "1"), ("b", "2")], [("b", "2"), ("a", "1")])
    )
    assert encode(one, SENDER) == encode(other, SENDER)


def test_the_key_travels_bare_in_the_http_header() -> None:
    """Not in quotes, not in the body, not under the name that SMTP uses."""
    sent = headers("re_key", "prod-email-order-102")
    assert sent["Idempotency-Key"] == "prod-email-order-102"
    assert sent["Authorization"] == "Bearer re_key"


def test_the_longest_key_of_ours_fits() -> None:
    """Namespace (32), hyphen and effect key (200)."""
    assert FACTS.key_characters_max >= 32 + 1 + 200


def test_providers_are_found_by_name() -> None:
    """The registry."""
    assert PROVIDERS["resend"] is RESEND
    assert set(PROVIDERS) == {"resend"}
