"""The independent oracle: what became of each order, told without a line of the project's code.

It reads three things and trusts no other: the orders that the shop has committed, the mail
service's own record (docs/mail-service.md), and what the command line says of held, dead and
cancelled ones (``outbox effects list --json`` and ``outbox jobs --json``, as JSON lines). The count
of accepted e-mails is the provider's alone; the command line is only asked what nobody outside can
know, and what it says is held against the record.

By itself: ``python tests/faults/oracle.py --orders FILE --record FILE --told FILE [--drained]``
prints a verdict per order that is not as it should be, then the totals; exit code 1 when a promise
is broken, 3 when it can't say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

KEY = "email-order-{}"


class Verdict(Enum):
    """What became of an order's e-mail; more than one may be true of a bad one."""

    DELIVERED_ONCE = "delivered once"
    HELD = "held, a request may have left"
    ENDED = "dead or cancelled, and not sent"
    DUPLICATED = "duplicated"
    LOST = "lost"
    SENT_WITHOUT_ORDER = "sent without an order"
    SURPLUS = "surplus requests"
    HELD_WITHOUT_REASON = "held without reason"
    ENDED_BUT_SENT = "dead or cancelled, but sent"
    OTHER_BYTES = "repeated with other bytes"
    MORE_THAN_BEGUN = "more requests than the ledger has begun"
    CANT_SAY = "can't say"


GOOD = frozenset({Verdict.DELIVERED_ONCE, Verdict.HELD, Verdict.ENDED})
#: What the command line says of an order whose e-mail need not have been accepted.
_HELD = frozenset({"held"})
_GIVEN_UP = frozenset({"given_up"})
_ENDED = frozenset({"dead", "cancelled", "rejected"})
_WAITING = frozenset({"ready", "scheduled", "backing_off", "running", "blocked", "open"})
#: The provider's word for a key that somebody has used with another body.
_KEY_TAKEN = "invalid_idempotent_request"


@dataclass(slots=True)
class Request:
    """A request that has arrived whole, and what the provider made of it."""

    connection: int
    body: str | None
    decided: bool = False
    accepted: bool = False
    refused: bool = False
    key_taken: bool = False
    #: A fault of the provider's, its restart, or a client that went before it had the answer.
    met_fault: bool = False
    #: Its connection is gone; what the client made of the answer, the provider can't see.
    client_gone: bool = False


@dataclass(slots=True)
class Traffic:
    """What the record says of one key.

    ``cut`` requests never arrived. ``unexplained`` are repeats of a request that was answered
    cleanly, as far as the provider can see.
    """

    requests: list[Request] = field(default_factory=list)
    cut: int = 0
    unexplained: int = 0

    @property
    def accepted(self) -> int:
        """E-mails taken for delivery."""
        return sum(request.accepted for request in self.requests)

    @property
    def in_doubt(self) -> bool:
        """Whether somebody on the other side may not know what became of a request."""
        return self.cut > 0 or any(
            request.met_fault or request.key_taken or not request.decided
            for request in self.requests
        )


@dataclass(frozen=True, slots=True)
class Told:
    """What the command line says of one key: of its effect, and of the jobs that ask for it."""

    states: frozenset[str] = frozenset()
    requests_sent: int | None = None


@dataclass(frozen=True, slots=True)
class Judgement:
    """All verdicts, by effect key; what is no order's has its key, or ``(no key)``."""

    verdicts: Mapping[str, frozenset[Verdict]]
    requests: int
    accepted: int

    @property
    def bad(self) -> dict[str, frozenset[Verdict]]:
        """The keys for which a promise is broken, for sure."""
        fine = GOOD | {Verdict.CANT_SAY}
        return {key: found for key, found in self.verdicts.items() if found - fine}

    @property
    def unknown(self) -> list[str]:
        """The keys of which nothing can be said."""
        return [key for key, found in self.verdicts.items() if Verdict.CANT_SAY in found]

    @property
    def totals(self) -> Counter[Verdict]:
        """How many keys have got each verdict."""
        return Counter(verdict for found in self.verdicts.values() for verdict in found)

    def __str__(self) -> str:
        lines = [f"{key}: {_words(found)}" for key, found in self.verdicts.items() if found - GOOD]
        counts = self.totals
        lines.append(f"{self.requests} requests, {self.accepted} e-mails accepted")
        lines += [f"{counts[verdict]:>8}  {verdict.value}" for verdict in Verdict]
        return "\n".join(lines)


def judge(
    orders: Iterable[int],
    record: Path,
    told: Iterable[str],
    *,
    drained: bool,
    faults: Mapping[int, int] | None = None,
    namespace: str | None = None,
) -> Judgement:
    """Return what became of each committed order.

    Args:
        orders: the ids of the orders that the shop has committed.
        record: the mail service's record.
        told: JSON lines of the command line, each with ``effect_key`` and ``state``.
        drained: whether, after the last fault, a consumer has drained the queue with exit code 0.
        faults: how many faults each order may have met that the provider can't see: a process
            killed or stopped, a lease that ran out, an answer of the database that was lost.
        namespace: what the consumers put in front of each key on the wire.

    Raises:
        ValueError: a line of the record or of the command line can't be read; the text names it.
    """
    traffic = read_record(record)
    answers = read_told(told)
    verdicts: dict[str, frozenset[Verdict]] = {}
    known: set[str | None] = set()
    for order in orders:
        key = KEY.format(order)
        on_wire = f"{namespace}-{key}" if namespace else key
        known.add(on_wire)
        verdicts[key] = _judge_order(
            traffic.get(on_wire, Traffic()),
            answers.get(key, Told()),
            drained=drained,
            faults=(faults or {}).get(order, 0),
        )
    for stranger, seen in traffic.items():
        if stranger not in known and seen.requests:
            verdicts[stranger or "(no key)"] = frozenset({Verdict.SENT_WITHOUT_ORDER})
    return Judgement(
        verdicts,
        requests=sum(len(seen.requests) for seen in traffic.values()),
        accepted=sum(seen.accepted for seen in traffic.values()),
    )


def _judge_order(seen: Traffic, told: Told, *, drained: bool, faults: int) -> frozenset[Verdict]:
    found = set(_broken_whatever_comes(seen, told, faults))
    waits = bool(told.states & _WAITING)
    if not found and (not drained or waits):
        found.add(Verdict.CANT_SAY)
    elif not found & {Verdict.DUPLICATED, Verdict.ENDED_BUT_SENT}:
        found.add(_end(seen, told, faults))
    return frozenset(found)


def _broken_whatever_comes(seen: Traffic, told: Told, faults: int) -> Iterator[Verdict]:
    """What no later event can put right, so that no drain has to be waited for."""
    if seen.accepted > 1:
        yield Verdict.DUPLICATED
    if seen.unexplained > faults:
        yield Verdict.SURPLUS
    if len({request.body for request in seen.requests}) > 1:
        yield Verdict.OTHER_BYTES
    if told.requests_sent is not None and len(seen.requests) > told.requests_sent:
        yield Verdict.MORE_THAN_BEGUN
    if seen.accepted and told.states & _ENDED and not told.states & ({"delivered"} | _GIVEN_UP):
        yield Verdict.ENDED_BUT_SENT


def _end(seen: Traffic, told: Told, faults: int) -> Verdict:
    if told.states & _HELD:
        return Verdict.HELD if seen.in_doubt or faults else Verdict.HELD_WITHOUT_REASON
    if seen.accepted:
        return Verdict.DELIVERED_ONCE
    # Delivered, says the ledger, but the provider knows nothing of it: that is lost, too.
    if told.states & (_ENDED | _GIVEN_UP) and "delivered" not in told.states:
        return Verdict.ENDED
    return Verdict.LOST


# -- reading ---------------------------------------------------------------------------------------


def read_record(path: Path) -> dict[str | None, Traffic]:
    """Return the traffic to ``POST /emails`` by key (``None``: requests without one).

    Raises:
        ValueError: a whole line is no JSON object with an event.
    """
    reader = _Reader()
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break  # torn: no answer was based on it
        reader.read(_object(line, f"{path}, line {number}"))
    return dict(reader.traffic)


class _Reader:
    """Follows the record line by line."""

    def __init__(self) -> None:
        self.traffic: defaultdict[str | None, Traffic] = defaultdict(Traffic)
        self._undecided: dict[int, Request] = {}
        self._on_connection: defaultdict[int, list[Request]] = defaultdict(list)

    def read(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "received" if (event["method"], event["path"]) == ("POST", "/emails"):
                self._received(event)
            case "decided" if event["seq"] in self._undecided:
                self._decided(event, self._undecided.pop(event["seq"]))
            case "cut" if event["path"] == "/emails":
                self.traffic[event["key"]].cut += 1
            case "closed":
                self._closed(event)
            case "opened":
                self._restarted()

    def _received(self, event: Mapping[str, Any]) -> None:
        seen = self.traffic[event["key"]]
        if seen.requests and _clean(seen.requests[-1]):
            seen.unexplained += 1
        request = Request(event["connection"], event["body_sha256"])
        seen.requests.append(request)
        self._undecided[event["seq"]] = request
        self._on_connection[event["connection"]].append(request)

    def _decided(self, event: Mapping[str, Any], request: Request) -> None:
        request.decided = True
        request.accepted = event["accepted"]
        request.refused = not (event["accepted"] or event["replayed"])
        request.key_taken = event["name"] == _KEY_TAKEN
        request.met_fault = request.met_fault or event["fault"] is not None

    def _closed(self, event: Mapping[str, Any]) -> None:
        requests = self._on_connection.pop(event["connection"], [])
        if event["by"] == "client":
            for request in requests:
                request.client_gone = True
        if requests and not event["answered"]:
            requests[-1].met_fault = True

    def _restarted(self) -> None:
        """Cuts every connection: its last request may have gone without an answer."""
        for requests in self._on_connection.values():
            requests[-1].met_fault = True
        for request in self._undecided.values():
            request.met_fault = True
        self._on_connection.clear()
        self._undecided.clear()


def _clean(request: Request) -> bool:
    """Whether the provider has given its answer, and nothing explains why it is asked again."""
    return not (request.met_fault or request.refused or request.client_gone)


def read_told(lines: Iterable[str]) -> dict[str, Told]:
    """Return what the command line says of each key, put together from all of its lines.

    Raises:
        ValueError: a line is no JSON object with a key and a state.
    """
    states: defaultdict[str, set[str]] = defaultdict(set)
    sent: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        answer = _object(line.encode(), f"the command line's answer, line {number}", "effect_key")
        key = str(answer["effect_key"])
        states[key].add(str(answer["state"]))
        if answer.get("requests_sent") is not None:
            sent[key] = int(answer["requests_sent"])
    return {key: Told(frozenset(found), sent.get(key)) for key, found in states.items()}


def read_orders(database_url: str) -> list[int]:
    """Return the ids of the committed orders, by plain SQL."""
    import psycopg

    with psycopg.connect(database_url) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM shop.orders ORDER BY id")]


def _object(line: bytes, where: str, name: str = "event") -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    if not isinstance(value, dict) or name not in value:
        raise ValueError(f"{where}: no JSON object with {name!r}")
    return value


def _words(found: Collection[Verdict]) -> str:
    return ", ".join(sorted(verdict.value for verdict in found))


def main(arguments: list[str] | None = None) -> int:
    """Judge files; 0 when all is well, 1 when a promise is broken, 3 when it can't say."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--orders", type=Path, help="a file with an order id a line")
    source.add_argument("--database-url", help="where the shop's orders are")
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--told", type=Path, action="append", default=[])
    parser.add_argument("--namespace")
    parser.add_argument("--drained", action="store_true", help="the final drain has ended with 0")
    given = parser.parse_args(arguments)
    if given.orders:
        orders = [int(line) for line in given.orders.read_text().split()]
    else:
        orders = read_orders(given.database_url)
    told = [line for file in given.told for line in file.read_text().splitlines()]
    judgement = judge(orders, given.record, told, drained=given.drained, namespace=given.namespace)
    sys.stdout.write(f"{judgement}\n")
    if judgement.bad:
        return 1
    return 3 if judgement.unknown else 0


if __name__ == "__main__":
    sys.exit(main())
