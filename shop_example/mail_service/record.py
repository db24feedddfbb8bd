"""Reading a record and counting from it: what arrived, what was accepted, what came too often.

For the demo and the tests. It needs nothing but the file and never writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shop_example.mail_service.events import (
    Closed,
    Cut,
    Decided,
    Event,
    Opened,
    Received,
    event_of,
)


class RecordError(Exception):
    """A record can't be used as it is; the text names the file, the line and the remedy."""


def read_record(path: Path) -> Iterator[Event]:
    """All events of a record, oldest first; a torn last line (no newline) is left out.

    Safe to call while the service is writing. Raises RecordError for any other unreadable line.
    """
    for _, event in read_lines(path):
        yield event


def read_lines(path: Path) -> Iterator[tuple[int, Event]]:
    """The same as ``read_record``, each event with the offset of its line in the file."""
    offset = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                event = event_of(line)
            except ValueError as error:
                raise RecordError(
                    f"{path}, line {number}: {error}; move the file away to start a new record"
                ) from error
            if event is not None:
                yield offset, event
            offset += len(line)


@dataclass(slots=True)
class KeyTally:
    """What the record says about one idempotency key (or about all requests that carried none).

    ``requests`` arrived whole; ``cut`` ones did not and are no part of them. ``surplus`` are
    requests that nothing explains: the one before, under the same key, met no fault, was not
    refused, and its client's connection was still there.
    """

    requests: int = 0
    accepted: int = 0
    replayed: int = 0
    refused: int = 0
    undecided: int = 0
    cut: int = 0
    surplus: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    email_ids: list[str] = field(default_factory=list)
    body_sha256s: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Request:
    """A request as the judgement of the next one under its key needs it."""

    connection: int
    decided: bool = False
    repeat_explained: bool = False


@dataclass(slots=True)
class Tally:
    """Counts per key over the requests to ``POST /emails``, from a record alone."""

    by_key: dict[str | None, KeyTally] = field(default_factory=dict)
    starts: int = 0
    _requests: dict[int, _Request] = field(default_factory=dict)
    _latest_of_key: dict[str, _Request] = field(default_factory=dict)
    _on_connection: dict[int, list[_Request]] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[Event]) -> Tally:
        """Counts a whole record."""
        tally = cls()
        for event in events:
            tally.add(event)
        return tally

    @property
    def requests(self) -> int:
        """Requests that arrived whole."""
        return sum(count.requests for count in self.by_key.values())

    @property
    def accepted(self) -> int:
        """E-mails taken for delivery, duplicates included."""
        return sum(count.accepted for count in self.by_key.values())

    @property
    def replayed(self) -> int:
        """Requests answered with an earlier e-mail's id; nothing was sent for them."""
        return sum(count.replayed for count in self.by_key.values())

    @property
    def faults(self) -> Counter[str]:
        """Faults that requests met, by name."""
        return sum((count.faults for count in self.by_key.values()), Counter())

    @property
    def duplicates(self) -> int:
        """E-mails accepted beyond the first of each key."""
        return sum(max(0, count.accepted - 1) for key, count in self.by_key.items() if key)

    @property
    def surplus(self) -> int:
        """Requests that nothing explains, over all keys."""
        return sum(count.surplus for count in self.by_key.values())

    def add(self, event: Event) -> None:
        """Counts one event; events come in the record's order."""
        match event:
            case Received(method="POST", path="/emails"):
                self._add_received(event)
            case Decided() if event.seq in self._requests:
                self._add_decided(event, self._requests.pop(event.seq))
            case Cut(path="/emails"):
                self._of(event.key).cut += 1
            case Closed():
                self._add_closed(event)
            case Opened():
                self._add_start()
            case _:
                pass

    def _of(self, key: str | None) -> KeyTally:
        return self.by_key.setdefault(key, KeyTally())

    def _add_received(self, event: Received) -> None:
        count = self._of(event.key)
        count.requests += 1
        count.undecided += 1
        if event.body_sha256 is not None:
            count.body_sha256s.add(event.body_sha256)
        request = self._requests[event.seq] = _Request(event.connection)
        self._on_connection.setdefault(event.connection, []).append(request)
        if event.key is None:
            return
        before = self._latest_of_key.get(event.key)
        if before is not None and not before.repeat_explained:
            count.surplus += 1
        self._latest_of_key[event.key] = request

    def _add_decided(self, event: Decided, request: _Request) -> None:
        count = self._of(event.key)
        count.undecided -= 1
        count.accepted += event.accepted
        count.replayed += event.replayed
        count.refused += not (event.accepted or event.replayed)
        if event.accepted and event.email_id is not None:
            count.email_ids.append(event.email_id)
        if event.fault is not None:
            count.faults[event.fault] += 1
        request.decided = True
        clean = (event.accepted or event.replayed) and event.fault is None
        request.repeat_explained = request.repeat_explained or not clean

    def _add_closed(self, event: Closed) -> None:
        requests = self._on_connection.pop(event.connection, [])
        if event.by == "client":
            for request in requests:
                request.repeat_explained = True

    def _add_start(self) -> None:
        """A restart explains the repeat of what was undecided, or last on a connection it cut.

        An earlier request of a connection was answered: its client went on to send another.
        """
        self.starts += 1
        for requests in self._on_connection.values():
            for request in requests:
                if request is requests[-1] or not request.decided:
                    request.repeat_explained = True
        self._on_connection.clear()
        self._requests.clear()
