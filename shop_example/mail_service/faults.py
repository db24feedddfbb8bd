"""The faults that the service can be told to commit: the whole list, as data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from shop_example.mail_service.answer import (
    IN_PROGRESS,
    INVALID_API_KEY,
    OTHER_PAYLOAD,
    Answer,
    error,
    rate_limited,
)


class FaultError(ValueError):
    """Faults were asked for that don't exist or don't add up; the text names the remedy."""


class Manner(enum.Enum):
    """How an answer leaves the service, or doesn't."""

    ANSWER = "as it should"
    CLOSE = "the connection is closed without a byte"
    RESET = "the connection is reset without a byte"
    STALL = "nothing is said until the client goes"
    DRIP = "head at once, then the body byte by byte"
    LATE = "as it should, but late"
    HALF_STATUS = "the status line is cut in the middle"
    TRUNCATE = "the announced body is longer than what is sent"
    RESET_MIDWAY = "half of the answer, then a reset"


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to misbehave.

    ``accepts``: the request is processed first, and the fault strikes if that would be answered
    with 200. Otherwise the fault comes in the place of all processing: nothing is accepted.
    ``answer`` replaces the honest one (None: the honest one, as far as the manner lets it out).
    """

    name: str
    accepts: bool
    manner: Manner = Manner.ANSWER
    answer: Answer | None = None


def _outage(status: int) -> Answer:
    names = {500: "internal_server_error", 503: "service_unavailable"}
    return error(status, names.get(status, "application_error"), "Fault: something went wrong.")


_GARBAGE = Answer(
    200,
    b"<!doctype html><html><title>Just a moment</title><body>Checking your browser</body></html>",
    content_type=b"text/html; charset=utf-8",
)
_EMPTY = Answer(200, b"")
_NO_ID = Answer(200, b'{"object":"email"}')
_ELSEWHERE = Answer(307, b"", "redirect", ((b"location", b"/redirected"),))
_RETRY_AFTER = ((b"retry-after", b"1"),)

_FAULTS = (
    # Not accepted: the fault comes instead of any processing.
    Fault("drop_before", False, Manner.CLOSE),
    Fault("reset_before", False, Manner.RESET),
    Fault("stall_before", False, Manner.STALL),
    *(Fault(f"{status}_before", False, answer=_outage(status)) for status in (500, 502, 503, 504)),
    Fault("408", False, answer=error(408, "application_error", "Fault: request timeout.")),
    Fault("429", False, answer=rate_limited(1, _RETRY_AFTER)),
    Fault(
        "429_daily_quota",
        False,
        answer=error(429, "daily_quota_exceeded", "You have reached your daily email quota."),
    ),
    Fault(
        "429_monthly_quota",
        False,
        answer=error(429, "monthly_quota_exceeded", "You have reached your monthly email quota."),
    ),
    Fault("409_in_progress", False, answer=IN_PROGRESS),
    Fault("409_other_payload", False, answer=OTHER_PAYLOAD),
    Fault("redirect", False, answer=_ELSEWHERE),
    Fault("400", False, answer=error(400, "validation_error", "Fault: invalid request.")),
    Fault("401", False, answer=error(401, "restricted_api_key", "Fault: this API key may not.")),
    Fault("403", False, answer=INVALID_API_KEY),
    Fault(
        "403_domain",
        False,
        answer=error(403, "validation_error", "The example.com domain is not verified."),
    ),
    Fault("404", False, answer=error(404, "not_found", "Fault: no such endpoint.")),
    Fault("422", False, answer=error(422, "validation_error", "Fault: invalid request.")),
    # Accepted first, and durably.
    Fault("drop_after_accept", True, Manner.CLOSE),
    Fault("reset_after_accept", True, Manner.RESET),
    Fault("half_status_after_accept", True, Manner.HALF_STATUS),
    *(Fault(f"{status}_after", True, answer=_outage(status)) for status in (500, 502, 503, 504)),
    Fault("stall", True, Manner.STALL),
    Fault("late", True, Manner.LATE),
    Fault("slow_drip", True, Manner.DRIP),
    Fault("garbage_200", True, answer=_GARBAGE),
    Fault("empty_200", True, answer=_EMPTY),
    Fault("no_id_200", True, answer=_NO_ID),
    Fault("truncated_200", True, Manner.TRUNCATE),
    Fault("reset_midway_200", True, Manner.RESET_MIDWAY),
)
FAULTS: Mapping[str, Fault] = {fault.name: fault for fault in _FAULTS}
_SHORT = {"500": "500_before", "502": "502_before", "503": "503_before", "504": "504_before"}


def fault_named(name: str) -> Fault:
    """The fault of that name; ``503`` is short for ``503_before``. Raises FaultError."""
    fault = FAULTS.get(_SHORT.get(name, name))
    if fault is None:
        raise FaultError(f"there is no fault {name!r}; there are: {', '.join(FAULTS)}")
    return fault
