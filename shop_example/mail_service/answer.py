"""What the service answers: Resend's success and error shapes.

Names and statuses are those of https://resend.com/docs/api-reference/errors; the limits and the
two 409s are those of https://resend.com/docs/dashboard/emails/idempotency-keys.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Header = tuple[bytes, bytes]

JSON_TYPE = b"application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP answer; ``name`` is the error's name in Resend's list, None for a success."""

    status: int
    body: bytes
    name: str | None = None
    headers: tuple[Header, ...] = ()
    content_type: bytes = JSON_TYPE

    def with_headers(self, headers: tuple[Header, ...]) -> Answer:
        """The same answer with more headers."""
        return Answer(
            self.status, self.body, self.name, (*self.headers, *headers), self.content_type
        )


def success(values: dict[str, Any], status: int = 200) -> Answer:
    """A 2xx with a JSON object."""
    return Answer(status, json.dumps(values, separators=(",", ":")).encode())


def error(status: int, name: str, message: str, headers: tuple[Header, ...] = ()) -> Answer:
    """An error in Resend's shape: ``{"statusCode", "name", "message"}``."""
    values = {"statusCode": status, "name": name, "message": message}
    return Answer(status, json.dumps(values, separators=(",", ":")).encode(), name, headers)


def accepted(email_id: str) -> Answer:
    """The answer to an accepted e-mail, and to every repeat of its key inside the window."""
    return Answer(200, b'{"id":"%b"}' % email_id.encode())


MISSING_API_KEY = error(401, "missing_api_key", "Missing API key in the authorization header.")
INVALID_API_KEY = error(403, "invalid_api_key", "API key is invalid.")
INVALID_IDEMPOTENCY_KEY = error(
    400, "invalid_idempotency_key", "The idempotency key must have between 1 and 256 characters."
)
OTHER_PAYLOAD = error(
    409,
    "invalid_idempotent_request",
    "Same idempotency key used with a different request payload.",
)
IN_PROGRESS = error(
    409,
    "concurrent_idempotent_requests",
    "Same idempotency key used while original request is still in progress.",
)
NOT_FOUND = error(404, "not_found", "The requested endpoint does not exist.")
NO_SUCH_EMAIL = error(404, "not_found", "Email not found.")
INVALID_EMAIL_ID = error(422, "invalid_parameter", "The `id` must be a valid UUID.")


def method_not_allowed(allowed: bytes) -> Answer:
    """405 for a known path."""
    return error(
        405,
        "method_not_allowed",
        "Method is not allowed for the requested path.",
        ((b"allow", allowed),),
    )


def too_large(limit_bytes: int) -> Answer:
    """413. Resend documents the limit (40 MB an e-mail), not this answer's shape."""
    return error(
        413,
        "payload_too_large",
        f"The request is larger than {limit_bytes} bytes, which is the limit for one e-mail.",
    )


def rate_limited(limit: int, headers: tuple[Header, ...] = ()) -> Answer:
    """429 with the headers of https://resend.com/docs/api-reference/rate-limit."""
    return error(
        429,
        "rate_limit_exceeded",
        f"Too many requests. You can only make {limit} requests per second.",
        headers,
    )
