"""What a mail is, and which requests are refused as none: pure checks of one request body.

Fields, limits and the names of the refusals follow Resend's ``POST /emails``
(https://resend.com/docs/api-reference/emails/send-email and /errors). Where it documents no check
(line breaks in a subject, commas in a display name) this service refuses: a fake that is stricter
than the provider finds mistakes earlier than a lenient one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from shop_example.mail_service.answer import Answer, error

MAX_RECIPIENTS = 50
REFUSED_DOMAIN = "refused.example"

_MAX_DEPTH = 64
_ENCODE_SORTED = json.JSONEncoder(sort_keys=True, check_circular=False).encode
_ADDRESS_FIELDS = ("to", "cc", "bcc", "reply_to")
_TEXT_FIELDS = ("subject", "html", "text", "scheduled_at")
_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z0-9-]{2,63}"
_ADDRESS = rf"[A-Za-z0-9.!#$%&'*+/=?^_`{{|}}~-]{{1,64}}@{_DOMAIN}"
_MAILBOX = re.compile(
    rf"""(?: "(?:[^"\\\x00-\x1f]|\\.)*" [ ]* < (?P<quoted>{_ADDRESS}) >
           | [^"<>,;:@\\\x00-\x1f]* < (?P<named>{_ADDRESS}) >
           | (?P<bare>{_ADDRESS}) )""",
    re.VERBOSE,
)
_TAG_PART = re.compile(r"[A-Za-z0-9_-]{1,256}")
_BREAKS = re.compile(r"[\r\n\x00]")


class Refused(Exception):
    """The request is no mail; ``answer`` says why, in Resend's words."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.name)
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Mail:
    """A checked mail: its fingerprint, and its JSON on one line as the record keeps it."""

    fingerprint: str
    line: bytes


def parse(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body; raises Refused when there is none."""
    try:
        values = json.loads(body.decode(), parse_constant=_not_json)
    except (ValueError, RecursionError):
        _refuse(400, "validation_error", "The request body must be a JSON object in UTF-8.")
    if not isinstance(values, dict):
        _refuse(400, "validation_error", "The request body must be a JSON object.")
    if body.count(b"[") + body.count(b"{") > _MAX_DEPTH and _depth(values) > _MAX_DEPTH:
        # A line of the record must be readable again, whatever the reader's stack is like.
        _refuse(400, "validation_error", f"The JSON is nested deeper than {_MAX_DEPTH} levels.")
    return values


def check(values: dict[str, Any], body: bytes) -> Mail:
    """The mail that a parsed body asks for; raises Refused naming the first field at fault."""
    for name in ("from", "to", "subject"):
        if values.get(name) in (None, "", []):
            _refuse(422, "missing_required_field", f"Missing `{name}` field.")
    if not any(values.get(name) for name in ("html", "text", "template")):
        _refuse(422, "validation_error", "Missing `html` or `text` field.")
    for name in _TEXT_FIELDS:
        if not isinstance(values.get(name, ""), str | None):
            _refuse(422, "validation_error", f"The `{name}` field must be a string.")
    if _BREAKS.search(values["subject"]):
        _refuse(422, "validation_error", "The `subject` field must not contain line breaks.")
    _check_mailbox("from", values["from"])
    for name in _ADDRESS_FIELDS:
        _check_mailboxes(name, values.get(name))
    for name, check_field in _OPTIONAL.items():
        if values.get(name) is not None:
            check_field(values[name])
    one_line = body if not _spans_lines(body) else json.dumps(values).encode()
    return Mail(fingerprint(values), one_line)


def fingerprint(values: dict[str, Any]) -> str:
    """SHA-256 of the payload in a normal form.

    Key order, an address alone or in a list of one, and absent or null fields make no difference.
    """
    normal = {name: value for name, value in values.items() if value is not None}
    for name in _ADDRESS_FIELDS:
        if name in normal:
            normal[name] = recipients_of(normal[name])
    return hashlib.sha256(_ENCODE_SORTED(normal).encode()).hexdigest()


def recipients_of(value: object) -> tuple[str, ...] | None:
    """An address field as a tuple of strings, None when it is neither a string nor a list."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None


def _check_mailboxes(name: str, value: object) -> None:
    if value is None:
        return
    recipients = recipients_of(value)
    if recipients is None:
        _refuse(422, "validation_error", f"The `{name}` field must be a string or a list of them.")
    if len(recipients) > MAX_RECIPIENTS:
        _refuse(422, "validation_error", f"The `{name}` field has more than {MAX_RECIPIENTS}.")
    for recipient in recipients:
        _check_mailbox(name, recipient)


def _check_mailbox(name: str, value: object) -> None:
    mailbox = _MAILBOX.fullmatch(value) if isinstance(value, str) else None
    if mailbox is None:
        _refuse(
            422,
            "validation_error",
            f"Invalid `{name}` field. The email address needs to follow the `email@example.com` "
            "or `Name <email@example.com>` format.",
        )
    domain = (mailbox["quoted"] or mailbox["named"] or mailbox["bare"]).rpartition("@")[2]
    if name != "from" and f".{domain.lower()}".endswith(f".{REFUSED_DOMAIN}"):
        _refuse(422, "validation_error", f"Invalid `{name}` field. {REFUSED_DOMAIN} takes no mail.")


def _check_tags(tags: object) -> None:
    if not isinstance(tags, list):
        _refuse(422, "validation_error", "The `tags` field must be a list.")
    for tag in tags:
        parts = (tag.get("name"), tag.get("value")) if isinstance(tag, dict) else (None,)
        if not all(isinstance(part, str) and _TAG_PART.fullmatch(part) for part in parts):
            _refuse(
                422,
                "validation_error",
                "Tags should only contain ASCII letters, numbers, underscores, or dashes, "
                "and at most 256 of them.",
            )


def _check_headers(headers: object) -> None:
    if not isinstance(headers, dict):
        _refuse(422, "validation_error", "The `headers` field must be an object.")
    for name, value in headers.items():
        if not isinstance(value, str) or _BREAKS.search(name) or _BREAKS.search(value):
            _refuse(422, "validation_error", "The `headers` must be strings without line breaks.")


def _check_attachments(attachments: object) -> None:
    if not isinstance(attachments, list):
        _refuse(422, "invalid_attachment", "The `attachments` field must be a list.")
    for attachment in attachments:
        if not isinstance(attachment, dict) or not (
            attachment.get("content") or attachment.get("path")
        ):
            _refuse(422, "invalid_attachment", "Attachment must have either a `content` or `path`.")


_OPTIONAL: dict[str, Callable[[object], None]] = {
    "tags": _check_tags,
    "headers": _check_headers,
    "attachments": _check_attachments,
}


def _refuse(status: int, name: str, message: str) -> NoReturn:
    raise Refused(error(status, name, message))


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _spans_lines(body: bytes) -> bool:
    return b"\n" in body or b"\r" in body


def _depth(value: object) -> int:
    """Levels of nesting, counted without recursion."""
    deepest, waiting = 0, [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        deepest = max(deepest, level)
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        waiting.extend((child, level + 1) for child in inner if isinstance(child, dict | list))
    return deepest
