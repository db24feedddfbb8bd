"""A provider that does to each request what a history says, and remembers what it accepted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from outbox.outcome import Answer, Meaning

if TYPE_CHECKING:
    from collections.abc import Callable


class Place(NamedTuple):
    """A provider and the account there."""

    provider: str
    account: str


class Deed(Enum):
    """What the provider does: accept at once, later (the request is under way), or not."""

    ACCEPT = "accept"
    LATER = "later"
    NOTHING = "nothing"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Act:
    """What one request meets, and what its sender hears of it."""

    deed: Deed
    meaning: Meaning


ACTS = {
    "accepted": Act(Deed.ACCEPT, Meaning.ACCEPTED),
    "answer lost": Act(Deed.ACCEPT, Meaning.FAILED),
    "accepted, then 503": Act(Deed.ACCEPT, Meaning.UNAVAILABLE),
    "unreadable": Act(Deed.ACCEPT, Meaning.ACCEPTED_UNREADABLE),
    "arrives later": Act(Deed.LATER, Meaning.FAILED),
    "failed": Act(Deed.NOTHING, Meaning.FAILED),
    "unavailable": Act(Deed.NOTHING, Meaning.UNAVAILABLE),
    "in progress": Act(Deed.NOTHING, Meaning.IN_PROGRESS),
    "key taken": Act(Deed.NOTHING, Meaning.KEY_TAKEN),
    "throttled": Act(Deed.NOTHING, Meaning.THROTTLED),
    "misconfigured": Act(Deed.NOTHING, Meaning.MISCONFIGURED),
    "unreached": Act(Deed.NOTHING, Meaning.UNREACHED),
    "refused": Act(Deed.REFUSE, Meaning.REFUSED),
    "refused, bare": Act(Deed.REFUSE, Meaning.REFUSED_BARE),
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A request that has left."""

    place: Place
    wire_key: str
    body: bytes
    job_id: int


@dataclass(slots=True)
class Provider:
    """All accounts of all providers; ``keeps_keys`` says whether they replay a key that they know.

    ``accepted`` hears of each acceptance, ``now`` is the history's clock.
    """

    keeps_keys: bool
    accepted: Callable[[Sent], None]
    now: Callable[[], float]
    #: The body accepted under a key, and when.
    _known: dict[tuple[Place, str], tuple[bytes, float]] = field(default_factory=dict)
    under_way: list[Sent] = field(default_factory=list)

    def receive(self, sent: Sent, act: Act) -> Answer:
        """Do what the history says, unless the key is known: then replay."""
        known = self._known.get((sent.place, sent.wire_key))
        if act.deed is Deed.LATER:
            self.under_way.append(sent)
        elif act.deed is Deed.REFUSE and known is None:
            # What is under way with the same key meets the same.
            self.under_way = [other for other in self.under_way if other.wire_key != sent.wire_key]
        elif act.deed in {Deed.ACCEPT, Deed.REFUSE}:
            if not self.arrive(sent):
                return Answer(Meaning.KEY_TAKEN, "key_taken")
            if act.deed is Deed.REFUSE:
                return Answer(Meaning.ACCEPTED, "accepted", "id")
        return Answer(
            act.meaning, act.meaning.value, "id" if act.meaning is Meaning.ACCEPTED else None
        )

    def arrive(self, sent: Sent) -> bool:
        """Accept a request, or recognise it; say whether its bytes are those of its key."""
        known = self._known.get((sent.place, sent.wire_key))
        if known is not None:
            return known[0] == sent.body
        if self.keeps_keys:
            self._known[sent.place, sent.wire_key] = (sent.body, self.now())
        self.accepted(sent)
        return True

    def forgettable(self, seconds: float) -> list[tuple[Place, str]]:
        """The keys that were accepted at least so long ago."""
        return [key for key, (_, since) in self._known.items() if self.now() - since >= seconds]

    def forget(self, key: tuple[Place, str]) -> None:
        """Its memory of a key is over."""
        del self._known[key]
