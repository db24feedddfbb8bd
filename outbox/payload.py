"""Payloads: JSON, checked before any SQL, with the path of what is wrong."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outbox.errors import InvalidJob

#: Payloads are kept small: they hold ids and what the text needs, not documents.
PAYLOAD_BYTES_MAX = 256 * 1024
DEPTH_MAX = 64
#: Far beyond any amount of money; bounded since Python refuses to print ints of 4,300 digits.
INTEGER_BITS_MAX = 4096

_FORM: dict[str, Any] = {
    "ensure_ascii": False, "allow_nan": False, "separators": (",", ":"), "default": dict,
}  # fmt: skip
_text = json.JSONEncoder(**_FORM).encode
_canonical = json.JSONEncoder(**_FORM, sort_keys=True).encode

_REMEDIES = {
    "Decimal": "pass str(value), which stays exact",
    "datetime": "pass value.isoformat()",
    "date": "pass value.isoformat()",
    "time": "pass value.isoformat()",
    "UUID": "pass str(value)",
    "bytes": "pass text, or base64 for binary data",
    "set": "pass a sorted list",
    "frozenset": "pass a sorted list",
}


def encode(payload: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the payload as JSON text, and the SHA-256 of its canonical form (sorted keys).

    Raises:
        InvalidJob: something in it is no JSON, or it is too large; ``field`` is the path.
    """
    if not isinstance(payload, Mapping):
        raise InvalidJob("payload", f"must be a mapping, not {type(payload).__name__}")
    _Check().value(payload, "payload", 0)
    try:
        text, canonical = _text(payload), _canonical(payload)
    except (TypeError, ValueError) as error:
        raise InvalidJob("payload", f"can't be written as JSON ({error})") from None
    if (size := len(text.encode())) > PAYLOAD_BYTES_MAX:
        raise _too_large(f"{size} bytes of JSON")
    return text, hashlib.sha256(canonical.encode()).digest()


def _too_large(size: str) -> InvalidJob:
    return InvalidJob(
        "payload", f"{size}, at most {PAYLOAD_BYTES_MAX} fit; pass ids and read the rest"
    )


#: Where a value stands: the field's name, or whose item it is and under which key or index.
_Place = str | tuple["_Place", str | int]


@dataclass(slots=True)
class _Check:
    """One walk through a payload.

    ``bytes_min`` is what its JSON takes at least: a walk that goes beyond the limit ends there, so
    that a list which holds the same large list many times over can't keep the caller busy.
    """

    bytes_min: int = 0

    def value(self, value: object, place: _Place, depth: int) -> None:
        if depth > DEPTH_MAX:
            problem = f"nested more than {DEPTH_MAX} deep, or it contains itself"
            raise InvalidJob(_path(place), problem)
        self._count(1)
        if isinstance(value, str):
            self._count(len(value))
            if flaw := _flaw(value):
                raise InvalidJob(_path(place), flaw)
        elif isinstance(value, Mapping):
            self._mapping(value, place, depth)
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self.value(item, (place, index), depth + 1)
        else:
            _check_other(value, place)

    def _mapping(self, value: Mapping[Any, Any], place: _Place, depth: int) -> None:
        for key, item in value.items():
            if not isinstance(key, str):
                kind = type(key).__name__
                raise InvalidJob(_path(place), f"has a key of type {kind}; JSON keys are text")
            self._count(len(key))
            if flaw := _flaw(key):
                raise InvalidJob(f"{_path(place)}, one of its keys", flaw)
            self.value(item, (place, key), depth + 1)

    def _count(self, least: int) -> None:
        self.bytes_min += least
        if self.bytes_min > PAYLOAD_BYTES_MAX:
            raise _too_large(f"more than {PAYLOAD_BYTES_MAX} bytes of JSON")


def _check_other(value: object, place: _Place) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidJob(_path(place), f"{value} is no JSON number; pass null or text")
    elif isinstance(value, int):
        if value.bit_length() > INTEGER_BITS_MAX:
            problem = f"an integer of over {INTEGER_BITS_MAX} bits; pass text"
            raise InvalidJob(_path(place), problem)
    elif value is not None:
        kind = type(value).__name__
        remedy = _REMEDIES.get(kind, "pass text, numbers, lists or mappings")
        raise InvalidJob(_path(place), f"{kind} is no JSON; {remedy}")


def _path(place: _Place) -> str:
    """A place in words; only an error needs them."""
    if isinstance(place, str):
        return place
    above, step = place
    return _path(above) + (f"[{step}]" if isinstance(step, int) else _step(step))


def _step(key: str) -> str:
    """A key as a step of a path. A long one, or one that may be an address, is not repeated."""
    if re.fullmatch(r"\w{1,60}", key):
        return f".{key}"
    if len(key) <= 60 and key.isprintable() and "@" not in key:
        return f"[{key!r}]"
    return f"[a key of {len(key)} characters]"


def check_text(value: str, field: str) -> None:
    """Refuse what PostgreSQL or UTF-8 can't hold: NUL and lone surrogates.

    Raises:
        InvalidJob: it holds one of them.
    """
    if flaw := _flaw(value):
        raise InvalidJob(field, flaw)


def _flaw(value: str) -> str | None:
    if "\x00" in value:
        return "holds a NUL character (U+0000), which PostgreSQL can't store; remove it"
    try:
        value.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which is no Unicode text; decode it properly"
    return None
