"""Resend's protocol: ``POST /emails`` and the meaning of its answers.

Sources: https://resend.com/docs/api-reference/emails/send-email (fields, limits),
https://resend.com/docs/dashboard/emails/idempotency-keys (keys: 1 to 256 characters, kept for 24
hours, a repeat gets the first answer), https://resend.com/docs/api-reference/errors (names).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from consumers.email.masking import presentable
from consumers.email.message import Address, Message
from consumers.email.provider import Facts, Provider
from consumers.email.retry_after import retry_after_seconds
from outbox.outcome import Answer, Meaning

FACTS: Final = Facts(
    name="resend",
    default_url="https://api.resend.com",
    path="/emails",
    memory_seconds=24 * 60 * 60.0,
    key_characters_max=256,
    replays=True,
)

#: Resend answers 403 to requests without a User-Agent.
_USER_AGENT = "outbox-effects"
_DETAIL_CHARACTERS = 500
_NAME_CHARACTERS = 60
_MESSAGE_ID = re.compile(r"[!-~]{1,200}")

#: Error names whose meaning doesn't depend on the status they came with.
_BY_NAME: Final = {
    # The account, its key, or the sender that EMAIL_FROM sets: no job is at fault.
    "missing_api_key": Meaning.MISCONFIGURED,
    "invalid_api_key": Meaning.MISCONFIGURED,
    "restricted_api_key": Meaning.MISCONFIGURED,
    "suspended_api_key": Meaning.MISCONFIGURED,
    "invalid_permission": Meaning.MISCONFIGURED,
    "invalid_from_address": Meaning.MISCONFIGURED,
    # "The requested endpoint does not exist": EMAIL_API_URL points to the wrong place.
    "not_found": Meaning.MISCONFIGURED,
    "method_not_allowed": Meaning.MISCONFIGURED,
    "daily_quota_exceeded": Meaning.MISCONFIGURED,
    "monthly_quota_exceeded": Meaning.MISCONFIGURED,
    "rate_limit_exceeded": Meaning.THROTTLED,
    "concurrent_idempotent_requests": Meaning.IN_PROGRESS,
    "resource_locked": Meaning.IN_PROGRESS,
    "invalid_idempotent_request": Meaning.KEY_TAKEN,
    "invalid_idempotency_key": Meaning.REFUSED,
    "missing_required_field": Meaning.REFUSED,
    "missing_required_parameter": Meaning.REFUSED,
    "invalid_parameter": Meaning.REFUSED,
    "invalid_attachment": Meaning.REFUSED,
    "security_error": Meaning.REFUSED,
}

#: The name ``validation_error`` covers wrong fields (400, 422) and, with 403, an unverified domain
#: or an account in test mode: there the status decides.
_NAME_OF_MANY = "validation_error"

#: 4xx without a name of the table above. 409 is left out: it may tell of an e-mail that was
#: accepted, of one under way, or of a lock; so it counts as failed, which keeps key and bytes,
#: repeats a few times, and ends before a person.
_BY_STATUS: Final = {
    400: Meaning.REFUSED,
    401: Meaning.MISCONFIGURED,
    402: Meaning.MISCONFIGURED,
    405: Meaning.MISCONFIGURED,
    407: Meaning.MISCONFIGURED,
    408: Meaning.UNAVAILABLE,
    409: Meaning.FAILED,
    413: Meaning.REFUSED,
    421: Meaning.UNAVAILABLE,
    422: Meaning.REFUSED,
    425: Meaning.UNAVAILABLE,
    429: Meaning.THROTTLED,
    499: Meaning.FAILED,
}


def headers(api_key: str, wire_key: str) -> dict[str, str]:
    """Return the headers of one request; the key goes over the wire bare, without quotes."""
    return {
        "Authorization": f"Bearer {api_key}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        "Idempotency-Key": wire_key,
        "User-Agent": _USER_AGENT,
    }


def encode(message: Message, sender: Address) -> bytes:
    """Return the request's body: JSON in one fixed order, non-ASCII as it is, no empty fields.

    Resend compares the payload of a repeat with the first one, so these bytes must not depend on
    anything but the message.
    """
    fields = {
        "from": str(sender),
        "to": [str(recipient) for recipient in message.to],
        "subject": message.subject,
        "text": message.text,
        "html": message.html,
        "cc": [str(recipient) for recipient in message.cc],
        "bcc": [str(recipient) for recipient in message.bcc],
        "reply_to": [str(recipient) for recipient in message.reply_to],
        "headers": dict(message.headers),
        "tags": [{"name": name, "value": value} for name, value in message.tags.items()],
    }
    given = {name: value for name, value in fields.items() if value}
    return json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()


def classify(status: int, headers: Mapping[str, str], body: bytes) -> Answer:
    """Say what an answer means: the status first, then the error's name, then the bare status."""
    error = _Body(body)
    match status // 100:
        case 2:
            return _success(status, error)
        case 3:
            # Never followed: the key would go to another host, and POST may become GET.
            meaning = Meaning.MISCONFIGURED
        case 4:
            meaning = _refusal(status, error)
        case 5 if status == 503:
            meaning = Meaning.UNAVAILABLE
        case _:
            meaning = Meaning.FAILED
    return Answer(
        meaning,
        f"http_{status} {error.name}".strip(),
        detail=error.message or None,
        retry_after_seconds=retry_after_seconds(headers),
    )


def _success(status: int, body: _Body) -> Answer:
    if body.message_id is None:
        return Answer(Meaning.ACCEPTED_UNREADABLE, f"http_{status} unreadable")
    return Answer(Meaning.ACCEPTED, f"http_{status}", message_id=body.message_id)


def _refusal(status: int, error: _Body) -> Meaning:
    if error.name in _BY_NAME:
        return _BY_NAME[error.name]
    if "api key is invalid" in error.message.lower():
        # With the name of a wrong field, and 400 or 401 depending on the endpoint.
        return Meaning.MISCONFIGURED
    if status == 403 and error.name == _NAME_OF_MANY:
        return Meaning.MISCONFIGURED
    return _BY_STATUS.get(status, Meaning.REFUSED_BARE)


class _Body:
    """What an answer's body says, as far as it can be read; a proxy may have written it."""

    def __init__(self, body: bytes) -> None:
        try:
            read = json.loads(body)
        except (ValueError, RecursionError):
            read = None
        self._fields: Mapping[str, object] = read if isinstance(read, dict) else {}

    def _text(self, field: str) -> str:
        value = self._fields.get(field)
        return value if isinstance(value, str) else ""

    @property
    def name(self) -> str:
        """The error's name, whatever was sent made harmless: lower-case letters, digits, ``_``."""
        return re.sub(r"[^a-z0-9_]", "", self._text("name")[:200].lower())[:_NAME_CHARACTERS]

    @property
    def message(self) -> str:
        return presentable(self._text("message"), _DETAIL_CHARACTERS)

    @property
    def message_id(self) -> str | None:
        found = self._text("id")
        return found if _MESSAGE_ID.fullmatch(found) else None


RESEND: Final = Provider(FACTS, headers, encode, classify)
