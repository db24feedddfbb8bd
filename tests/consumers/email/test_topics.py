"""The registry of topics: what it takes, how payloads are read, what a failure says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, field_validator
from typing_extensions import TypedDict

from consumers.email.message import InvalidMessage, Message
from consumers.email.topics import Emails
from outbox.errors import ConfigurationError
from outbox.gateway import Unrenderable

SECRET = "jane@example.com"


class Line(BaseModel):
    """A line of an order."""

    name: str
    price: Decimal

    @field_validator("name")
    @classmethod
    def _refuses(cls, name: str) -> str:
        if name == "bad":
            raise ValueError(f"{SECRET} can't have {name}")
        return name


class OrderModel(BaseModel):
    """An order as a pydantic model."""

    id: int
    email: str
    placed_at: datetime | None = None
    lines: list[Line] = []
    prices: dict[str, Decimal] = {}


@dataclass(frozen=True)
class OrderData:
    """An order as a dataclass."""

    id: int
    email: str


class OrderDict(TypedDict):
    """An order as a TypedDict."""

    id: int
    email: str


def from_model(order: OrderModel) -> Message:
    """Take a pydantic model."""
    return Message(to=order.email, subject=f"Order {order.id}", text="Thank you.")


def from_dataclass(order: OrderData) -> Message:
    """Take a dataclass."""
    return Message(to=order.email, subject=f"Order {order.id}", text="Thank you.")


def from_typed_dict(order: OrderDict) -> Message:
    """Take a TypedDict."""
    return Message(to=order["email"], subject=f"Order {order['id']}", text="Thank you.")


def from_dict(order: dict[str, Any]) -> Message:
    """Take a dict."""
    return Message(to=order["email"], subject=f"Order {order['id']}", text="Thank you.")


def from_bare_dict(order: dict) -> Message:  # type: ignore[type-arg]
    """Take a dict without saying of what."""
    return from_dict(order)


def from_mapping(order: Mapping[str, Any]) -> Message:
    """Take a mapping."""
    return from_dict(dict(order))


ALL = [from_model, from_dataclass, from_typed_dict, from_dict, from_bare_dict, from_mapping]


def registered(function: Callable[[Any], Message], **options: Any) -> Emails:
    """An application with one topic."""
    emails = Emails()
    emails.topic("email.order", **options)(function)
    return emails


@pytest.mark.parametrize("function", ALL)
def test_a_payload_is_read_as_the_annotation_says(function: Callable[[Any], Message]) -> None:
    """Model, dataclass, TypedDict or dict; a field that is new to the reader is passed over."""
    payload = {"id": 7, "email": SECRET, "new_in_next_release": [1, {"a": None}]}
    message = registered(function).render("email.order", payload)
    assert message.subject == "Order 7"
    assert message.to[0].address == SECRET


def test_a_function_stays_callable_by_itself() -> None:
    """The decorator returns what it was given."""
    emails = Emails()
    assert emails.topic("email.order")(from_model) is from_model


def test_exact_numbers_and_iso_dates_are_read() -> None:
    """Strict is as strict as JSON allows: big integers, decimals and dates arrive whole."""
    seen: list[OrderModel] = []

    def keeps(order: OrderModel) -> Message:
        seen.append(order)
        return from_model(order)

    payload = (
        '{"id":1180591620717411303424,"email":"a@b.example","placed_at":"2026-11-30T12:00:00Z",'
        '"lines":[{"name":"tea","price":"3.10"},{"name":"jam","price":0.1}]}'
    )
    registered(keeps).render("email.order", payload)
    assert seen[0].id == 2**70
    assert [line.price for line in seen[0].lines] == [Decimal("3.10"), Decimal("0.1")]
    assert seen[0].placed_at is not None


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("", "payload: json_invalid"),
        ("{", "payload: json_invalid"),
        ("[" * 100_000, "payload: json_invalid"),
        ('{"a":' * 100_000, "payload: json_invalid"),
        ("[]", "payload: model_type"),
        ("null", "payload: model_type"),
        ('"x"', "payload: model_type"),
        ("{}", "payload.id: missing; payload.email: missing"),
        ('{"id":"7","email":"jane@example.com"}', "payload.id: int_type"),
        ('{"id":7,"email":null}', "payload.email: string_type"),
        (
            '{"id":7,"email":"jane@example.com","lines":[{"name":"bad","price":1}]}',
            "payload.lines[0].name: value_error",
        ),
        (
            '{"id":7,"email":"a","prices":{"jane@example.com":"x"}}',
            "payload.prices.*: decimal_parsing",
        ),
        (
            '{"email":"a","lines":[{}]}',
            "payload.id: missing; payload.lines[0].name: missing; payload.lines[0].price: missing",
        ),
    ],
)
def test_a_payload_that_doesnt_fit_is_named_by_place_and_kind_alone(
    payload: str, reason: str
) -> None:
    """No value of it, not even as a key or in a validator's own words."""
    with pytest.raises(Unrenderable) as caught:
        registered(from_model).render("email.order", payload)
    assert str(caught.value) == reason


@pytest.mark.parametrize("function", [from_dict, from_bare_dict, from_mapping, from_typed_dict])
@pytest.mark.parametrize("payload", ["[]", "7", "null", "nonsense"])
def test_a_payload_that_is_no_object_is_refused(
    function: Callable[[Any], Message], payload: str
) -> None:
    """Also where the function asked for no more than a dict."""
    with pytest.raises(Unrenderable, match=r"^payload: "):
        registered(function).render("email.order", payload)


def test_of_many_problems_a_few_are_named() -> None:
    """The reason stays one line."""
    payload = {"id": 1, "email": "a", "lines": [{"name": "tea"}] * 10}
    with pytest.raises(Unrenderable, match=r"lines\[2\]\.price: missing; and 7 more$"):
        registered(from_model).render("email.order", payload)


def test_a_failing_function_is_named_with_its_place_and_no_value() -> None:
    """The text goes into the dead job; the error itself is the cause, for tests."""

    def fails(order: dict[str, Any]) -> Message:
        raise RuntimeError(f"no such customer: {order['email']}")

    with pytest.raises(
        Unrenderable, match=r"^fails raised RuntimeError \(test_topics.py line "
    ) as (caught):
        registered(fails).render("email.order", {"email": SECRET})
    assert SECRET not in str(caught.value)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_place_of_a_failure_is_in_the_applications_own_code() -> None:
    """Not the line inside a library that it called."""

    def fails(order: dict[str, Any]) -> Message:
        return Message(to=SECRET, subject=Decimal(order["total"]).to_eng_string(), text=open_it())

    def open_it() -> str:
        return datetime.fromisoformat("never").isoformat()

    with pytest.raises(Unrenderable, match=r"ValueError \(test_topics.py line \d+\)$"):
        registered(fails).render("email.order", {"total": "1"})


def test_an_invalid_message_says_which_field() -> None:
    """Its words hold no value, so they can be shown."""
    with pytest.raises(Unrenderable, match=r"^message.to: address: must be one address") as caught:
        registered(from_dict).render("email.order", {"id": 1, "email": f"{SECRET}\r\nBcc: x@y.z"})
    assert isinstance(caught.value.__cause__, InvalidMessage)
    assert SECRET not in str(caught.value)


def test_something_else_than_a_message_is_unrenderable() -> None:
    """A forgotten return."""

    def forgets(_: dict[str, Any]) -> Message:
        return None  # type: ignore[return-value]

    with pytest.raises(Unrenderable, match="forgets returned NoneType instead of a Message"):
        registered(forgets).render("email.order", {})


# -- registration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["e", "email.order-confirmation_2", "A" * 100, "0.x"])
def test_names_of_topics(name: str) -> None:
    """Letters, digits, dots, hyphens and underscores."""
    emails = Emails()
    emails.topic(name)(from_dict)
    assert set(emails.topics) == {name}


@pytest.mark.parametrize("name", ["", ".x", "-x", "a b", "a/b", "ä", "a\n", "A" * 101])
def test_other_names_are_refused(name: str) -> None:
    """When the module is imported."""
    with pytest.raises(ConfigurationError, match=r"topic .*from_dict.*a name is 1 to 100 letters"):
        Emails().topic(name)(from_dict)


def test_a_topic_has_one_function() -> None:
    """The second one is refused, and the message names both."""
    emails = registered(from_dict)
    with pytest.raises(ConfigurationError, match=r"from_model.*registered already.*from_dict"):
        emails.topic("email.order")(from_model)
    assert emails.topics["email.order"].function is from_dict


def no_argument() -> Message:
    """Take nothing."""
    raise AssertionError


def two_arguments(order: dict[str, Any], other: int) -> Message:
    """Take too much."""
    raise AssertionError


def keyword_only(*, order: dict[str, Any]) -> Message:
    """Take it in another way."""
    raise AssertionError


def any_number(*orders: dict[str, Any]) -> Message:
    """Take any number."""
    raise AssertionError


def not_annotated(order) -> Message:  # type: ignore[no-untyped-def]
    """Don't say what it takes."""
    raise AssertionError


def takes_a_list(order: list[int]) -> Message:
    """Take what is no object."""
    raise AssertionError


def takes_anything(order: Any) -> Message:
    """Take anything."""
    raise AssertionError


def returns_text(order: dict[str, Any]) -> str:
    """Return something else."""
    raise AssertionError


async def waits(order: dict[str, Any]) -> Message:
    """Be a coroutine."""
    raise AssertionError


def unresolvable(order: Nowhere) -> Message:  # type: ignore[name-defined] # noqa: F821
    """Name a type that isn't there."""
    raise AssertionError


class Template:
    """An object that can be called."""

    def __call__(self, order: dict[str, Any]) -> Message:
        return from_dict(order)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (no_argument, "exactly one argument"),
        (two_arguments, "exactly one argument"),
        (keyword_only, "exactly one argument"),
        (any_number, "exactly one argument"),
        (not_annotated, "must be annotated"),
        (takes_a_list, "must be annotated"),
        (takes_anything, "must be annotated"),
        (returns_text, "must return a Message"),
        (waits, "no async"),
        (unresolvable, "can't be resolved"),
        (Template(), "plain function"),
    ],
)
def test_a_function_of_another_shape_is_refused_at_import(function: Any, problem: str) -> None:
    """With the topic's and the function's name."""
    with pytest.raises(ConfigurationError, match=rf"^topic 'email.order' \(\w+\): .*{problem}"):
        registered(function)


class Unreadable:
    """A type that pydantic knows nothing of."""


@dataclass
class HoldsUnreadable:
    """A payload that can't be read."""

    thing: Unreadable


def takes_unreadable(order: HoldsUnreadable) -> Message:
    """Take what nobody can read."""
    raise AssertionError


def test_a_payload_type_that_cant_be_read_is_refused_at_import() -> None:
    """Not when the first job comes."""
    with pytest.raises(ConfigurationError, match="its payload can't be read"):
        registered(takes_unreadable)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"unknown": "maybe"}, '"hold" or "repeat"'), ({"max_attempts": 0}, "1 or more")],
)
def test_options_of_a_topic_are_checked(options: Any, problem: str) -> None:
    """At import, too."""
    with pytest.raises(ConfigurationError, match=problem):
        registered(from_dict, **options)


def test_the_topics_cant_be_changed_from_outside() -> None:
    """The registry is read-only."""
    with pytest.raises(TypeError):
        registered(from_dict).topics["other"] = None  # type: ignore[index]


def test_an_unknown_topic_is_the_tests_own_mistake() -> None:
    """Rendering by hand."""
    with pytest.raises(KeyError):
        Emails().render("email.order", {})
