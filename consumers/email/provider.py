"""What differs between e-mail providers: facts, the request's form, the meaning of an answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from consumers.email.message import Address, Message
from outbox.outcome import Answer


@dataclass(frozen=True, slots=True)
class Facts:
    """What a provider documents of itself; each module names its source.

    ``memory_seconds``: how long it keeps an idempotency key (``None``: it has none).
    ``replays``: a repeat within that time is answered as the first request was.
    """

    name: str
    default_url: str
    path: str
    memory_seconds: float | None
    key_characters_max: int
    replays: bool


@dataclass(frozen=True, slots=True)
class Provider:
    """One provider's protocol, as pure functions.

    ``headers(api_key, wire_key)``; ``encode(message, sender)`` gives the same bytes for the same
    message, always; ``classify(status, headers, body)`` never raises, whatever the body holds, and
    takes headers by lower-case name.
    """

    facts: Facts
    headers: Callable[[str, str], dict[str, str]]
    encode: Callable[[Message, Address], bytes]
    classify: Callable[[int, Mapping[str, str], bytes], Answer]
