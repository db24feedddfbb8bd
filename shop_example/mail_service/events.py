"""The events of the record: what one line of it says, and its wording as a JSON line.

The record is the mail-service's only memory and the judges' only evidence: an append-only file of
JSON lines, described in docs/mail-service.md. No I/O here: ``journal`` writes, ``record`` reads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

FORMAT = 1

_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Opened:
    """A process began to write here; everything it had in progress before is forgotten."""

    event: ClassVar[str] = "opened"
    at: float
    format: int
    pid: int
    keeps_keys: bool
    key_window_seconds: float


@dataclass(frozen=True, slots=True)
class Received:
    """A whole request is in; nothing has been decided about it yet."""

    event: ClassVar[str] = "received"
    at: float
    clock: float
    seq: int
    connection: int
    method: str
    path: str
    key: str | None
    body_sha256: str | None
    body_bytes: int
    to: tuple[str, ...] | None
    subject: str | None


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of request ``seq``: written and synced before a byte of the answer leaves.

    ``status`` is the one the client gets to see, None when no status line leaves at all.
    ``accepted`` is true for a new e-mail alone; a replay of an earlier one is ``replayed``.
    """

    event: ClassVar[str] = "decided"
    at: float
    clock: float
    seq: int
    key: str | None
    accepted: bool
    replayed: bool
    email_id: str | None
    status: int | None
    name: str | None
    fault: str | None
    fingerprint: str | None = None
    mail: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """The client went away in the middle of sending a request, which therefore never arrived.

    ``path`` and ``key`` are None when not even its head was whole.
    """

    event: ClassVar[str] = "cut"
    at: float
    connection: int
    path: str | None
    key: str | None
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection that had carried requests is gone.

    ``answered``: its last request was, wholly, while the client was there.
    """

    event: ClassVar[str] = "closed"
    at: float
    connection: int
    answered: bool
    by: str
    reset: bool


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes that aren't HTTP/1.1 came in and were answered with a 400 or 431."""

    event: ClassVar[str] = "malformed"
    at: float
    connection: int
    problem: str


@dataclass(frozen=True, slots=True)
class ClockMoved:
    """The service's own clock, by which keys expire, was set this far off real time."""

    event: ClassVar[str] = "clock"
    at: float
    offset_seconds: float


@dataclass(frozen=True, slots=True)
class FaultsSet:
    """From here on requests meet these faults (by name, the share of requests)."""

    event: ClassVar[str] = "faults"
    at: float
    seed: int
    rates: dict[str, float]
    targeted: tuple[dict[str, Any], ...]


Event = Opened | Received | Decided | Cut | Closed | Malformed | ClockMoved | FaultsSet

_KINDS: dict[str, type[Event]] = {
    kind.event: kind
    for kind in (Opened, Received, Decided, Cut, Closed, Malformed, ClockMoved, FaultsSet)
}
_FIELDS = {kind: tuple(f.name for f in fields(kind)) for kind in _KINDS.values()}
_TUPLES = ("to", "targeted")


def line_of(event: Event, mail: bytes | None = None) -> bytes:
    """One line of the record, newline included.

    ``mail`` is the accepted request's body (JSON without line breaks), spliced in as it came:
    to encode it again would cost more than everything else about the line.
    """
    values: dict[str, Any] = {"event": event.event}
    for name in _FIELDS[type(event)]:
        values[name] = getattr(event, name)
    values.pop("mail", None)
    line = _ENCODE(values).encode()
    return line + b"\n" if mail is None else b'%b,"mail":%b}\n' % (line[:-1], mail)


def event_of(line: bytes) -> Event | None:
    """The event of a line, or None for a kind that this version doesn't know.

    Raises ValueError for a line that isn't one of the record's at all.
    """
    values = json.loads(line)
    if not isinstance(values, dict) or "event" not in values:
        raise ValueError("not a line of a mail-service record")
    kind = _KINDS.get(values.pop("event"))
    if kind is None:
        return None
    for name in _TUPLES:
        if isinstance(values.get(name), list):
            values[name] = tuple(values[name])
    try:
        return kind(**{name: values[name] for name in _FIELDS[kind] if name in values})
    except TypeError as error:
        raise ValueError(str(error)) from error
