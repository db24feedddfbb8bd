"""Which orders a fault has met: those that its consumer was at work on when it struck."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.storm.life import Sign

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault of the rig's.

    From when until when (seconds since the epoch), and which process it met (by its number in the
    nursery); all of them where ``number`` is ``None``.
    """

    at: float
    until: float
    number: int | None = None


@dataclass(slots=True)
class Work:
    """What one consumer's journal says."""

    #: By effect key, when it was at work on it.
    spans: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    #: By effect key and version of the claim, when calls were started.
    calls: dict[tuple[str, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    unanswered: Counter[str] = field(default_factory=Counter)
    #: Begun, and not settled when its consumer ended.
    left_open: Counter[str] = field(default_factory=Counter)
    late: list[tuple[float, float]] = field(default_factory=list)
    struck: list[tuple[float, str]] = field(default_factory=list)

    def in_flight(self, at: float, until: float) -> set[str]:
        """The keys that it was at work on in that time."""
        return {
            key
            for key, spans in self.spans.items()
            if any(begin <= until and at <= end for begin, end in spans)
        }


def read_journal(path: Path) -> Work:
    """Read one journal; work without an end goes on for ever (its consumer has died)."""
    work = Work()
    # Two jobs may ask for the same effect, and be worked on at the same time.
    begun: dict[str, list[float]] = defaultdict(list)
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        time, sign, words = line.split(" ", 2)
        at = float(time)
        match Sign(sign):
            case Sign.BEGIN:
                begun[words].append(at)
            case Sign.END:
                work.spans[words].append((begun[words].pop(), at))
            case Sign.OPEN | Sign.CLOSED:
                work.left_open[words] += 1 if sign == Sign.OPEN else -1
            case Sign.CALL:
                started, version, key = words.split(" ")
                work.calls[key, int(version)].append(float(started))
            case Sign.UNANSWERED:
                work.unanswered[words] += 1
            case Sign.LATE:
                work.late.append((float(words), at))
            case Sign.STRUCK:
                work.struck.append((at, words))
    for key, moments in begun.items():
        work.spans[key] += [(at, FOREVER) for at in moments]
    return work


@dataclass(slots=True)
class Exposure:
    """How many faults each key has met, and how many of them were the machine's own.

    ``unanswered``: calls without a real answer, as the consumers saw them. ``left_open``: by a
    consumer that died between intent and settling.
    """

    met: Counter[str] = field(default_factory=Counter)
    unanswered: Counter[str] = field(default_factory=Counter)
    left_open: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    late_heartbeats: int = 0


def expose(works: Mapping[int, Work], blows: Sequence[Blow]) -> Exposure:
    """Count for each key the blows that came while it was worked on.

    A late heartbeat is the machine's own fault, unless a blow explains it.
    """
    exposure = Exposure()
    for blow in blows:
        hit = works.values() if blow.number is None else [works[blow.number]]
        for work in hit:
            keys = work.in_flight(blow.at, blow.until)
            exposure.met.update(keys)
            exposure.in_flight += len(keys)
    for number, work in works.items():
        exposure.unanswered.update(work.unanswered)
        exposure.left_open.update(work.left_open)
        for begin, end in work.late:
            if any(_explains(blow, number, begin, end) for blow in blows):
                continue
            late = work.in_flight(begin, end)
            exposure.met.update(late)
            exposure.late_heartbeats += bool(late)
    return exposure


def _explains(blow: Blow, number: int, begin: float, end: float) -> bool:
    return blow.number in {None, number} and blow.at <= end and begin <= blow.until
