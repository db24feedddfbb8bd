"""Payloads: what is JSON goes through unchanged, what is not is refused before any SQL."""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outbox import InvalidJob, Outbox
from outbox.payload import DEPTH_MAX, INTEGER_BITS_MAX, PAYLOAD_BYTES_MAX, encode
from tests.databases import Databases


class Colour(StrEnum):
    """Text by another name."""

    RED = "red"


class Size(IntEnum):
    """A number by another name."""

    LARGE = 3


@pytest.fixture(scope="module")
def module_url(databases: Databases) -> Iterator[str]:
    """One database for all examples of this file."""
    url = databases.create_migrated()
    yield url
    databases.drop(url)


@pytest.fixture(scope="module")
def transaction(module_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection whose transaction stays open for all examples; nothing of it is committed."""
    with psycopg.connect(module_url) as connection:
        yield connection
        connection.rollback()


def stored(connection: psycopg.Connection[Any], payload: Mapping[str, Any]) -> str:
    """The JSON text that a consumer would be given."""
    job_id = Outbox().enqueue(connection, "a.topic", payload, effect_key="a-key")
    row = connection.execute(
        "SELECT CAST(payload AS text) FROM outbox.job WHERE id = %s", [job_id]
    ).fetchone()
    assert row is not None
    return str(row[0])


def exactly(value: object) -> object:
    """A form in which 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    match value:
        case dict():
            return [(key, exactly(item)) for key, item in value.items()]
        case list() | tuple():
            return [exactly(item) for item in value]
        case float():
            return ("float", value.hex())
        case _:
            return (type(value).__name__, value)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"text": "", "more": "Grüße, ☕ and 👩‍👩‍👧‍👦"},
        {"null": None, "true": True, "false": False},
        {"big": 2**70, "negative": -(2**70), "zero": 0},
        {"huge": 2**INTEGER_BITS_MAX - 1},
        {"negative zero": -0.0, "one": 1.0, "large": 1e300, "tiny": 5e-324, "tenth": 0.1},
        {"six characters": "\\u0000", "path": "C:\\u0000dir", "quotes": '"\\"', "slash": "a/b"},
        {"control": "\x01\x1f\x7f\t\r\n\u2028\u2029\ufffe\uffff"},
        {"first": 1, "a": 2, "Z": 3, "10": 4, "2": 5, "": 6},
        {"deep": [[], [[]], {}, {"list": [1, [2, {"x": []}]]}]},
        {"percent": "%s %(x)s %% :name ::text $1 ? \\' '' --"},
    ],
    ids=lambda payload: next(iter(payload), "empty"),
)
def test_json_comes_back_exactly_as_it_was_given(
    transaction: psycopg.Connection[Any], payload: dict[str, Any]
) -> None:
    """Types, digits, characters and the order of keys survive the way through the database."""
    assert exactly(json.loads(stored(transaction, payload))) == exactly(payload)


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        ({"pair": (1, 2)}, '{"pair":[1,2]}'),
        (OrderedDict(b=1, a=2), '{"b":1,"a":2}'),
        (MappingProxyType({"inner": MappingProxyType({"x": 1})}), '{"inner":{"x":1}}'),
        ({"colour": Colour.RED, "size": Size.LARGE}, '{"colour":"red","size":3}'),
        ({Colour.RED: True}, '{"red":true}'),
    ],
    ids=["tuple", "ordered dict", "read-only mapping", "enums", "enum as key"],
)
def test_what_is_json_by_another_name_becomes_plain_json(
    payload: Mapping[str, Any], text: str
) -> None:
    """Tuples, other mappings and enums of text and numbers are written as what they are."""
    assert encode(payload)[0] == text


class Money:
    """Something of the caller's own."""


def circle() -> list[Any]:
    """A list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


REFUSED: dict[str, tuple[Any, str, str]] = {
    "NaN": ({"a": {"b": [0, math.nan]}}, "payload.a.b[1]", "nan is no JSON number; pass null"),
    "infinity": ({"a": math.inf}, "payload.a", "inf is no JSON number"),
    "minus infinity": ({"a": -math.inf}, "payload.a", "-inf is no JSON number"),
    "Decimal": ({"a": [Decimal("1.10")]}, "payload.a[0]", "pass str(value), which stays exact"),
    "datetime": ({"at": datetime.now(UTC)}, "payload.at", "pass value.isoformat()"),
    "date": ({"at": date(2026, 7, 1)}, "payload.at", "pass value.isoformat()"),
    "time": ({"at": time(12)}, "payload.at", "pass value.isoformat()"),
    "UUID": ({"id": UUID(int=1)}, "payload.id", "pass str(value)"),
    "bytes": ({"raw": b"x"}, "payload.raw", "pass text, or base64"),
    "set": ({"tags": {1}}, "payload.tags", "pass a sorted list"),
    "frozenset": ({"tags": frozenset([1])}, "payload.tags", "pass a sorted list"),
    "an object": ({"total": Money()}, "payload.total", "Money is no JSON; pass text, numbers"),
    "a generator": ({"rows": iter([1])}, "payload.rows", "pass text, numbers, lists or mappings"),
    "a complex number": ({"z": 1j}, "payload.z", "complex is no JSON"),
    "a number as key": ({"a": {1: "x"}}, "payload.a", "key of type int; JSON keys are text"),
    "None as key": ({None: "x"}, "payload", "key of type NoneType"),
    "NUL": ({"lines": [{"text": "a\x00b"}]}, "payload.lines[0].text", "NUL character (U+0000)"),
    "NUL in a key": ({"a": {"b\x00": 1}}, "payload.a, one of its keys", "NUL character"),
    "half a pair": ({"a": "\ud83d"}, "payload.a", "half of a surrogate pair"),
    "the other half": ({"a": "\ude00"}, "payload.a", "half of a surrogate pair"),
    "half a pair in a key": ({"\ud83d": 1}, "payload, one of its keys", "half of a surrogate"),
    "an endless integer": (
        {"n": 2**INTEGER_BITS_MAX},
        "payload.n",
        f"integer of over {INTEGER_BITS_MAX} bits; pass text",
    ),
    "a circle": ({"a": circle()}, "payload.a" + "[0]" * DEPTH_MAX, "or it contains itself"),
    "a key with spaces": ({"first name": math.nan}, "payload['first name']", "no JSON number"),
    "an address as key": ({"a@b.example": math.nan}, "payload[a key of 11 characters]", "nan"),
    "a long key": ({"k" * 61: math.nan}, "payload[a key of 61 characters]", "nan"),
    "a list": ([1], "payload", "must be a mapping, not list"),
    "text": ("{}", "payload", "must be a mapping, not str"),
    "nothing": (None, "payload", "must be a mapping, not NoneType"),
}


@pytest.mark.parametrize(("payload", "field", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_json_is_refused_before_any_sql(
    transaction: psycopg.Connection[Any], payload: Any, field: str, problem: str
) -> None:
    """The error names the path and the remedy; nothing was written, the transaction goes on."""
    before = transaction.execute("SELECT count(*) FROM outbox.job").fetchone()
    with pytest.raises(InvalidJob) as refusal:
        Outbox().enqueue(transaction, "a.topic", payload, effect_key="a-key")
    assert refusal.value.field == field
    assert str(refusal.value).startswith(f"{field}: ")
    assert problem in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 600
    assert transaction.execute("SELECT count(*) FROM outbox.job").fetchone() == before
    assert stored(transaction, {"order_id": 102}) == '{"order_id":102}'


@pytest.mark.parametrize("surplus", [-1, 0, 1])
@pytest.mark.parametrize("character", ["x", "é", "👍", '"'])
def test_the_size_is_counted_in_bytes_of_json(character: str, surplus: int) -> None:
    """The limit itself fits, one byte more does not, however many bytes a character takes."""
    frame = len('{"text":""}')
    size = len(json.dumps(character, ensure_ascii=False).encode()) - 2
    filling = character * ((PAYLOAD_BYTES_MAX - frame) // size - 1)
    rest = "x" * (PAYLOAD_BYTES_MAX - frame - len(filling) * size + surplus)
    payload = {"text": filling + rest}
    if surplus <= 0:
        assert len(encode(payload)[0].encode()) == PAYLOAD_BYTES_MAX + surplus
    else:
        with pytest.raises(InvalidJob, match=r"payload: .*bytes of JSON, at most 262144 fit; pass"):
            encode(payload)


def test_the_largest_payload_comes_back(transaction: psycopg.Connection[Any]) -> None:
    """What the check lets through, the database stores."""
    payload = {"text": "x" * (PAYLOAD_BYTES_MAX - len('{"text":""}'))}
    assert json.loads(stored(transaction, payload)) == payload


def test_the_deepest_payload_comes_back(transaction: psycopg.Connection[Any]) -> None:
    """The limit of depth itself is allowed."""
    value: Any = "core"
    for _ in range(DEPTH_MAX - 1):
        value = [value]
    assert json.loads(stored(transaction, {"a": value})) == {"a": value}
    with pytest.raises(InvalidJob, match="nested more than 64 deep"):
        encode({"a": [value]})


@pytest.mark.parametrize("leaf", [0, "x" * 1000], ids=["numbers", "texts"])
def test_a_list_that_holds_itself_many_times_over_is_refused_at_once(leaf: object) -> None:
    """Forty lists that each hold the one before twice have a million million values."""
    value: list[Any] = [leaf, leaf]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(InvalidJob, match="payload: more than 262144 bytes of JSON"):
        encode({"a": value})


class Deceiver(Mapping[str, Any]):
    """A mapping whose items are not what it gives."""

    def __getitem__(self, key: str) -> object:
        return object()

    def __iter__(self) -> Iterator[str]:
        return iter(["key"])

    def __len__(self) -> int:
        return 1

    def items(self) -> Any:
        return ()


def test_a_mapping_that_changes_while_it_is_read_is_refused() -> None:
    """What the check has not seen can't get to the database either."""
    with pytest.raises(InvalidJob, match="payload: can't be written as JSON"):
        encode(Deceiver())


def test_the_fingerprint_is_the_sha_256_of_the_json_with_sorted_keys() -> None:
    """It is the same for every order of keys, at every depth, and anyone can compute it."""
    payload = {"b": [{"d": 1, "c": 2}], "a": "é"}
    _, fingerprint = encode(payload)
    assert fingerprint == hashlib.sha256('{"a":"é","b":[{"c":2,"d":1}]}'.encode()).digest()
    assert encode({"a": "é", "b": [{"c": 2, "d": 1}]})[1] == fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": None}, {}),
        ({"a": "1"}, {"a": 1}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": "é"}, {"a": "e\u0301"}),
        ({"a": "\\u0000"}, {"a": "\\\\u0000"}),
    ],
)
def test_different_payloads_have_different_fingerprints(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    """What differs as JSON is not taken for the same effect."""
    assert encode(one)[1] != encode(other)[1]


#: No deadline: another test may have the processor.
examples = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def text_for_postgres() -> st.SearchStrategy[str]:
    """Any text without NUL and halves of surrogate pairs."""
    return st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | text_for_postgres(),
    lambda inner: st.lists(inner) | st.dictionaries(text_for_postgres(), inner),
    max_leaves=10,
)  # fmt: skip
payloads = st.dictionaries(text_for_postgres(), json_values)


@given(payload=payloads)
@examples
def test_any_json_comes_back_exactly(
    transaction: psycopg.Connection[Any], payload: dict[str, Any]
) -> None:
    """Whatever JSON there is, the consumer is given what the producer gave."""
    assert exactly(json.loads(stored(transaction, payload))) == exactly(payload)


def backwards(value: object) -> object:
    """The same JSON with the keys of every mapping the other way round."""
    match value:
        case dict():
            return {key: backwards(item) for key, item in reversed(value.items())}
        case list():
            return [backwards(item) for item in value]
        case _:
            return value


@given(payload=payloads)
@examples
def test_the_order_of_keys_never_changes_the_fingerprint(payload: dict[str, Any]) -> None:
    """A producer that builds its payload in another order means the same effect."""
    turned = backwards(payload)
    assert isinstance(turned, dict)
    assert encode(turned)[1] == encode(payload)[1]
    assert exactly(json.loads(encode(turned)[0])) == exactly(turned)


anything = st.recursive(
    st.floats() | st.text() | st.binary() | st.integers() | st.decimals() | st.datetimes()
    | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=10,
)  # fmt: skip


@given(payload=st.dictionaries(st.text() | st.none() | st.integers(), anything))
@examples
def test_whatever_is_given_is_either_storable_json_or_refused_with_a_path(
    payload: dict[Any, Any],
) -> None:
    """No other error comes out, and nothing that PostgreSQL could not store gets through."""
    refused_at: str | None = None
    try:
        text, fingerprint = encode(payload)
    except InvalidJob as refusal:
        refused_at = refusal.field
    else:
        assert b"\x00" not in text.encode()
        assert "\\u0000" not in text.replace("\\\\", "")
        assert exactly(json.loads(text)) == exactly(payload)
        assert len(fingerprint) == 32
    assert refused_at is None or refused_at.startswith("payload")
