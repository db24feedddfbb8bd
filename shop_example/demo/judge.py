"""The judge of the demo: counts what happened, from what can't be talked round.

Its evidence is the orders table, the mail-service's own record, the moments of the kills, and, for
held effects alone, the answer of ``outbox effects list --state held``. Pure: no I/O here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shop_example.mail_service.events import Closed, Decided, Event, Received
from shop_example.mail_service.faults import FAULTS

#: A request that was written just before its consumer died is noted as received a little later.
ARRIVAL_SECONDS_MAX = 0.5
#: After an answer its consumer still has to settle; a kill until then makes a repeat necessary.
SETTLE_SECONDS_MAX = 2.0
#: From the intent in the ledger to the settling of the answer: a call's deadline, and some more.
ATTEMPT_SECONDS_MAX = 3.5


@dataclass(frozen=True, slots=True)
class Held:
    """An effect that waits for a person; ``begun_at``: when its last try began."""

    effect_key: str
    reason: str
    begun_at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the judge gets to see. Times are seconds since the epoch."""

    provider_keys: bool
    committed: frozenset[str]
    rolled_back: int
    kills: Sequence[float]
    events: Iterable[Event]
    held: Sequence[Held]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The counts, and a line for each thing that must not be.

    ``missing_holds``: accepted, but nobody was told, and yet not held; ``needless_holds``: held
    although nothing stood in the way of an answer, or without a reason.
    """

    provider_keys: bool
    orders_committed: int
    orders_rolled_back: int
    kills: int
    requests: int
    faults: Mapping[str, int]
    answers_dropped: int
    emails_accepted: int
    held: int
    duplicates: int
    lost: int
    surplus_requests: int
    sent_for_rolled_back: int
    missing_holds: int
    needless_holds: int
    problems: Sequence[str]

    @property
    def clean(self) -> bool:
        """Whether everything is as promised."""
        return not self.problems


@dataclass(slots=True)
class _Request:
    """One request as the record tells it."""

    key: str | None
    arrived: float
    decided: Decided | None = None
    abandoned: bool = False

    @property
    def accepted(self) -> bool:
        return self.decided is not None and self.decided.accepted

    @property
    def answered(self) -> bool:
        """A success went out in full, to a client that was still there."""
        return (
            self.decided is not None
            and (self.decided.accepted or self.decided.replayed)
            and self.decided.fault is None
            and not self.abandoned
        )

    @property
    def silent(self) -> bool:
        """Its client saw no success: no status at all, or one of an error."""
        return self.decided is not None and not 200 <= (self.decided.status or 0) < 300

    @property
    def surely_refused(self) -> bool:
        """429 says that the request was not accepted: it leaves nothing open."""
        return self.decided is not None and self.decided.status == 429

    def cut_short(self, kills: Sequence[float], until: float = float("inf")) -> bool:
        """Whether a kill fell between its start and the settling of its answer."""
        end = until if self.decided is None else self.decided.at + SETTLE_SECONDS_MAX
        since, until = self.arrived - ARRIVAL_SECONDS_MAX, min(end, until)
        return any(since <= kill <= until for kill in kills)


@dataclass(slots=True)
class _Findings:
    """Lines by kind of problem."""

    lines: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, line: str) -> None:
        self.lines.setdefault(kind, []).append(line)

    def count(self, kind: str) -> int:
        return len(self.lines.get(kind, ()))


def judge(evidence: Evidence) -> Verdict:
    """Count, and find what must not be."""
    requests = _requests(evidence.events)
    by_key: dict[str | None, list[_Request]] = {}
    for request in requests:
        by_key.setdefault(request.key, []).append(request)
    held = {hold.effect_key: hold for hold in evidence.held}

    findings = _Findings()
    for key, trail in by_key.items():
        if key in evidence.committed:
            _judge_requests(findings, trail, evidence.kills)
        else:
            _judge_uncalled_for(findings, key, trail)
    for key in sorted(evidence.committed):
        _judge_order(findings, key, by_key.get(key, []), evidence, is_held=key in held)
    for hold in evidence.held:
        _judge_hold(findings, hold, by_key.get(hold.effect_key, []), evidence)

    decisions = [request.decided for request in requests if request.decided is not None]
    faults = Counter(decided.fault for decided in decisions if decided.fault is not None)
    return Verdict(
        provider_keys=evidence.provider_keys,
        orders_committed=len(evidence.committed),
        orders_rolled_back=evidence.rolled_back,
        kills=len(evidence.kills),
        requests=len(requests),
        faults=dict(sorted(faults.items())),
        answers_dropped=sum(n for name, n in faults.items() if FAULTS[name].accepts),
        emails_accepted=sum(request.accepted for request in requests),
        held=len(held),
        duplicates=findings.count("duplicate"),
        lost=findings.count("lost"),
        surplus_requests=findings.count("surplus"),
        sent_for_rolled_back=findings.count("rolled back"),
        missing_holds=findings.count("missing hold"),
        needless_holds=findings.count("needless hold"),
        problems=[line for lines in findings.lines.values() for line in lines],
    )


def _requests(events: Iterable[Event]) -> list[_Request]:
    """The requests to ``POST /emails`` that arrived whole, in the record's order."""
    found: dict[int, _Request] = {}
    last_on: dict[int, _Request] = {}
    for event in events:
        match event:
            case Received(method="POST", path="/emails"):
                last_on[event.connection] = found[event.seq] = _Request(event.key, event.at)
            case Decided() if event.seq in found:
                found[event.seq].decided = event
            case Closed(by="client", answered=False) if event.connection in last_on:
                last_on[event.connection].abandoned = True
            case _:
                pass
    return list(found.values())


def _judge_requests(findings: _Findings, trail: Sequence[_Request], kills: Sequence[float]) -> None:
    """A request may follow one that met a fault or a refusal, or whose consumer was killed."""
    for number, (earlier, later) in enumerate(pairwise(trail), start=2):
        if earlier.answered and not earlier.cut_short(kills, until=later.arrived):
            findings.add("surplus", f"{later.key}: nothing explains its request no. {number}")


def _judge_uncalled_for(findings: _Findings, key: str | None, trail: Sequence[_Request]) -> None:
    """No order of this key was committed: neither an e-mail nor a request may be."""
    for request in trail:
        findings.add("surplus", f"{key}: a request, but no committed order")
        if request.accepted:
            findings.add("rolled back", f"{key}: an e-mail, but no committed order")


def _judge_order(
    findings: _Findings, key: str, trail: Sequence[_Request], evidence: Evidence, *, is_held: bool
) -> None:
    """One e-mail; where the provider keeps no keys, none only if held, and held if unproven."""
    accepted = sum(request.accepted for request in trail)
    may_wait = is_held and not evidence.provider_keys
    if accepted > 1:
        findings.add("duplicate", f"{key}: {accepted} e-mails")
    elif accepted == 0 and not may_wait:
        findings.add("lost", f"{key}: no e-mail, and not held" if not is_held else f"{key}: held")
    elif not evidence.provider_keys and not is_held and all(r.silent for r in trail):
        findings.add("missing hold", f"{key}: nobody was told of its e-mail, and it is not held")


def _judge_hold(
    findings: _Findings, hold: Held, trail: Sequence[_Request], evidence: Evidence
) -> None:
    """Held only where a request may have left without an answer, and with a reason."""
    if evidence.provider_keys:
        findings.add("needless hold", f"{hold.effect_key}: held, though a repeat would be replayed")
    elif not hold.reason:
        findings.add("needless hold", f"{hold.effect_key}: held without a reason")
    elif not _unanswered(hold, trail, evidence.kills):
        findings.add("needless hold", f"{hold.effect_key}: held, though its answer went out")


def _unanswered(hold: Held, trail: Sequence[_Request], kills: Sequence[float]) -> bool:
    """Whether its last try met a fault or a kill."""
    if not trail or trail[-1].surely_refused:
        # The try that left something open never arrived: its consumer died before.
        since, until = hold.begun_at - ARRIVAL_SECONDS_MAX, hold.begun_at + ATTEMPT_SECONDS_MAX
        return any(since <= kill <= until for kill in kills)
    return not trail[-1].answered or trail[-1].cut_short(kills)
