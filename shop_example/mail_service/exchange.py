"""What passes between a connection and the service: a request in, a reply out."""

from __future__ import annotations

from dataclasses import dataclass

from shop_example.mail_service.answer import Answer, Header
from shop_example.mail_service.faults import Manner


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it came off the wire, its header names in lower case.

    ``local``: the client is on this machine.
    """

    connection: int
    local: bool
    method: str
    path: str
    query: str
    headers: tuple[Header, ...]
    body: bytes = b""

    def header(self, name: bytes) -> str | None:
        """The header's value as text, None when it is absent; several are joined by commas."""
        values = [value for other, value in self.headers if other == name]
        return b", ".join(values).decode("latin-1") if values else None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and the manner in which it leaves; ``seq`` names the recorded request.

    ``answer`` is None when nothing of one is to be seen; ``pace_seconds`` is the pause between
    two bytes of a drip.
    """

    answer: Answer | None
    manner: Manner = Manner.ANSWER
    seq: int | None = None
    pace_seconds: float = 0.0
