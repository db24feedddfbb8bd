"""The gateway: what the queue sees of the provider, the account and the requests."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import Any

import httpx
import pytest
import respx

from consumers.email.gateway import EmailGateway
from consumers.email.message import Message
from consumers.email.renderer import Renderer
from consumers.email.topics import Emails
from consumers.email.transport import Transport
from outbox.backoff import Backoff
from outbox.errors import ConfigurationError
from outbox.gateway import Gateway, Unrenderable
from outbox.job import Job
from outbox.outcome import Meaning, Policy
from tests.consumers.email.conftest import API_KEY, MakeGateway, settings

URL = "http://127.0.0.1:8025"


def job(payload: object = None, **given: Any) -> Job:
    """A claimed job."""
    order = {"id": 102, "email": "jane@example.com"}
    text = payload if isinstance(payload, str) else json.dumps(payload or order)
    facts: dict[str, Any] = {
        "id": 1,
        "topic": "email.order_confirmation",
        "priority": 0,
        "position": 1,
        "effect_key": "email-order-102",
        "payload": text,
        "payload_fingerprint": b"",
        "claim_version": 1,
        "claimed_by": "test",
        "attempts": 1,
        "max_attempts": None,
        "expired": False,
    }
    return Job(**(facts | given))


def through(router: respx.Router) -> Transport:
    """A transport whose network is the router."""
    return Transport(lambda: httpx.MockTransport(router.async_handler))


# -- who and where --------------------------------------------------------------------------------


def test_it_is_a_gateway(make_gateway: MakeGateway) -> None:
    """The type checker agrees, and the plain facts are there."""
    gateway: Gateway = make_gateway(api_url=URL, timeout_seconds=12.0)
    assert gateway.provider == "resend"
    assert gateway.topics == frozenset({"email.order_confirmation"})
    assert gateway.deadline_seconds == 12


@pytest.mark.parametrize(
    ("given", "account"),
    [
        ({"api_url": None}, "api.resend.com"),
        ({"api_url": URL}, "127.0.0.1:8025"),
        ({"api_url": f"{URL}/v1/"}, "127.0.0.1:8025"),
        ({"api_url": None, "account": "shop"}, "api.resend.com/shop"),
    ],
)
def test_an_account_is_the_apis_host_and_its_name(
    make_gateway: MakeGateway, given: dict[str, Any], account: str
) -> None:
    """And never the key, which may be rotated."""
    assert make_gateway(**given).account == account


def test_an_application_without_topics_is_refused() -> None:
    """A consumer of nothing is a mistake."""
    with pytest.raises(ConfigurationError, match="no topic is registered"):
        EmailGateway(Emails(), settings(), max_attempts=5, backoff=Backoff())


# -- policies -------------------------------------------------------------------------------------


def two_topics() -> Emails:
    """One that follows the settings, and one with a mind of its own."""
    emails = Emails()

    @emails.topic("email.plain")
    def plain(_: dict[str, Any]) -> Message:
        return Message("a@b.example", "s", "t")

    emails.topic("email.repeats", unknown="repeat", max_attempts=9)(plain)
    emails.topic("email.holds", unknown="hold")(plain)
    return emails


def test_a_policy_is_the_settings_and_what_the_topic_asks_for(make_gateway: MakeGateway) -> None:
    """Memory with its margin, what to do in doubt, and how often."""
    gateway = make_gateway(two_topics(), api_url=URL, max_attempts=4)
    plain = Policy(23 * 3600.0, repeat_unknown=False, max_attempts=4, backoff=Backoff())
    assert gateway.policy("email.plain") == plain
    assert gateway.policy("email.holds") == plain
    assert gateway.policy("email.repeats") == Policy(23 * 3600.0, True, 9, Backoff())
    assert gateway.policy("unheard.of") == plain


def test_a_topic_may_hold_where_the_settings_repeat(make_gateway: MakeGateway) -> None:
    """And a provider without keys has no memory."""
    gateway = make_gateway(two_topics(), api_url=URL, unknown="repeat", key_window_seconds=0)
    assert gateway.policy("email.plain").repeat_unknown
    assert not gateway.policy("email.holds").repeat_unknown
    assert gateway.policy("email.plain").memory_seconds is None


# -- rendering ------------------------------------------------------------------------------------


async def test_a_job_becomes_the_exact_request(make_gateway: MakeGateway) -> None:
    """Bytes, key and whom it concerns, as a hash."""
    request = await make_gateway(api_url=URL).render(job())
    assert request.body == (
        b'{"from":"Shop <orders@shop.example>","to":["jane@example.com"],'
        b'"subject":"Order 102","text":"Thank you."}'
    )
    assert request.wire_key == "email-order-102"
    assert request.party == hashlib.sha256(b"jane@example.com").hexdigest()[:16]


async def test_the_namespace_goes_before_the_key(make_gateway: MakeGateway) -> None:
    """So that environments that share an account share no keys."""
    gateway = make_gateway(api_url=URL, key_namespace="prod")
    assert (await gateway.render(job())).wire_key == "prod-email-order-102"


async def test_rendering_twice_gives_the_same_bytes(make_gateway: MakeGateway) -> None:
    """In this consumer and in another."""
    one, other = make_gateway(api_url=URL), make_gateway(api_url=URL)
    assert await one.render(job()) == await one.render(job()) == await other.render(job())


@pytest.mark.parametrize("payload", ["", "[]", "7", "{", "[" * 100_000, '{"a":' * 50_000])
async def test_a_payload_that_is_no_json_object_is_unrenderable(
    make_gateway: MakeGateway, payload: str
) -> None:
    """At once, with a reason that quotes nothing."""
    with pytest.raises(Unrenderable, match=r"^payload: \w+$"):
        await make_gateway(api_url=URL).render(job(payload or " "))


async def test_a_topic_of_somebody_else_is_unrenderable(make_gateway: MakeGateway) -> None:
    """It should never have been claimed."""
    with pytest.raises(Unrenderable, match=r"no such topic here: sms\.code"):
        await make_gateway(api_url=URL).render(job(topic="sms.code"))


async def test_a_message_too_large_to_freeze_is_unrenderable(make_gateway: MakeGateway) -> None:
    """With its size."""
    emails = Emails()

    @emails.topic("email.order_confirmation")
    def large(_: dict[str, Any]) -> Message:
        return Message("a@b.example", "s", "x" * 2**20)

    with pytest.raises(Unrenderable, match=r"^message: 10486\d\d bytes, more than 1048576$"):
        await make_gateway(emails, api_url=URL).render(job())


async def test_a_render_that_never_ends_is_unrenderable(make_gateway: MakeGateway) -> None:
    """And the gateway goes on."""
    emails = Emails()

    @emails.topic("email.order_confirmation")
    def order_confirmation(order: dict[str, Any]) -> Message:
        while order["loops"]:
            pass
        return Message("a@b.example", "s", "t")

    gateway = make_gateway(emails, api_url=URL, renderer=Renderer(seconds_max=0.3))
    with pytest.raises(Unrenderable, match=r"took longer than 0\.3 s"):
        await gateway.render(job({"loops": True}))
    assert (await gateway.render(job({"loops": False}))).body


# -- calling --------------------------------------------------------------------------------------


async def test_a_call_is_one_post_to_the_provider(make_gateway: MakeGateway) -> None:
    """To the path of its API, with the frozen bytes."""
    router = respx.Router()
    route = router.post(f"{URL}/v1/emails").respond(200, json={"id": "x-1"})
    gateway = make_gateway(api_url=f"{URL}/v1/", transport=through(router))
    answer = await gateway.call("email-1", b"{ }", deadline_seconds=5, may_start=lambda: True)
    assert (answer.meaning, answer.message_id) == (Meaning.ACCEPTED, "x-1")
    sent = route.calls.last.request
    assert sent.content == b"{ }"
    assert sent.headers["idempotency-key"] == "email-1"


async def test_a_wait_asked_for_in_any_spelling_of_the_header_is_seen(
    make_gateway: MakeGateway,
) -> None:
    """Header names have no case."""
    router = respx.Router()
    router.post(f"{URL}/emails").respond(
        429, json={"name": "rate_limit_exceeded"}, headers={"Retry-After": "7"}
    )
    gateway = make_gateway(api_url=URL, transport=through(router))
    answer = await gateway.call("email-1", b"{}", deadline_seconds=5, may_start=lambda: True)
    assert (answer.meaning, answer.retry_after_seconds) == (Meaning.THROTTLED, 7)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "invalid_api_key", "message": f"no such key: {API_KEY}"},
        {"name": API_KEY, "message": API_KEY.upper()},
        {"id": API_KEY},
    ],
)
@pytest.mark.parametrize("status", [200, 401, 500])
async def test_a_server_that_echoes_the_key_brings_it_nowhere(
    make_gateway: MakeGateway, status: int, body: dict[str, str]
) -> None:
    """Neither into the reason, nor the detail, nor the id."""
    router = respx.Router()
    router.post(f"{URL}/emails").respond(status, json=body)
    gateway = make_gateway(api_url=URL, transport=through(router))
    answer = await gateway.call("email-1", b"{}", deadline_seconds=5, may_start=lambda: True)
    assert API_KEY.lower() not in repr(answer).lower()


@pytest.mark.parametrize("before", range(480, 505, 4))
async def test_no_part_of_an_echoed_key_is_left_where_words_are_cut(
    make_gateway: MakeGateway, before: int
) -> None:
    """The key is taken out before the words are cut, wherever it begins."""
    words = "x" * before + API_KEY

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.RemoteProtocolError(words, request=request)

    def refused(_: httpx.Request) -> httpx.Response:
        return httpx.Response(422, json={"name": "validation_error", "message": words})

    for handler in (broken, refused):
        through_it = Transport(partial(httpx.MockTransport, handler))
        gateway = make_gateway(api_url=URL, transport=through_it)
        answer = await gateway.call("email-1", b"{}", deadline_seconds=5, may_start=lambda: True)
        assert answer.detail is not None
        assert API_KEY[:4] not in answer.detail


async def test_an_id_is_kept_though_it_contains_a_tests_short_key(
    make_gateway: MakeGateway,
) -> None:
    """A key of a few letters is in many ids by chance."""
    router = respx.Router()
    router.post(f"{URL}/emails").respond(200, json={"id": "a-test-1"})
    gateway = make_gateway(api_url=URL, api_key="test", transport=through(router))
    answer = await gateway.call("email-1", b"{}", deadline_seconds=5, may_start=lambda: True)
    assert answer.message_id == "a-test-1"


async def test_a_call_without_a_request_is_a_fault_of_ours(make_gateway: MakeGateway) -> None:
    """An e-mail always has a body."""
    with pytest.raises(ValueError, match="has a body"):
        await make_gateway(api_url=URL).call(
            "email-1", None, deadline_seconds=5, may_start=lambda: True
        )


async def test_closing_twice_is_fine(make_gateway: MakeGateway) -> None:
    """Consumer and command may both do it."""
    gateway = make_gateway(api_url=URL)
    await gateway.close()
    await gateway.close()
