"""The way from a job to the provider and back: render, call, classify."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from consumers.email.masking import presentable
from consumers.email.renderer import Renderer
from consumers.email.settings import EmailSettings
from consumers.email.topics import Emails, Topic
from consumers.email.transport import Broken, Transport
from outbox.backoff import Backoff
from outbox.errors import ConfigurationError
from outbox.gateway import Unrenderable
from outbox.job import Job, Request
from outbox.outcome import Answer, Meaning, Policy

#: Requests are frozen in the ledger, so they are kept small; an order confirmation has some KiB.
REQUEST_BYTES_MAX: Final = 1024 * 1024
_DETAIL_CHARACTERS = 500
#: A shorter key is a test's; that a message id contains it says nothing.
_KEY_CHARACTERS = 12


class EmailGateway:
    """Renders the topics of an application and calls one provider account (``outbox.Gateway``).

    ``transport`` and ``renderer`` are given in tests.

    Raises:
        ConfigurationError: the application has no topics.
    """

    def __init__(
        self,
        emails: Emails,
        settings: EmailSettings,
        *,
        max_attempts: int,
        backoff: Backoff,
        transport: Transport | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        if not emails.topics:
            raise ConfigurationError("no topic is registered; decorate a function with .topic(...)")
        self._topics = dict(emails.topics)
        self._settings = settings
        self._provider = settings.provider
        self._endpoint = settings.endpoint
        self._sender = settings.sender
        self._default = Policy(
            memory_seconds=settings.memory_seconds,
            repeat_unknown=settings.unknown == "repeat",
            max_attempts=max_attempts,
            backoff=backoff,
        )
        self._policies = {name: self._own_policy(topic) for name, topic in self._topics.items()}
        self._transport = transport or Transport()
        self._renderer = renderer or Renderer()

    @property
    def provider(self) -> str:
        return self._provider.facts.name

    @property
    def account(self) -> str:
        """The API's host, and ``EMAIL_ACCOUNT`` behind it where that is set."""
        name = self._settings.account
        return f"{self._endpoint.host}/{name}" if name else self._endpoint.host

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    @property
    def deadline_seconds(self) -> float:
        return self._settings.timeout_seconds

    def policy(self, topic: str) -> Policy:
        """Return the settings' policy, with what the topic itself asks for."""
        return self._policies.get(topic, self._default)

    async def render(self, job: Job) -> Request:
        """Return the exact request of a job; as ``outbox.Gateway`` says.

        Raises:
            Unrenderable: the payload can't become a request.
        """
        topic = self._topics.get(job.topic)
        if topic is None:
            raise Unrenderable(f"no such topic here: {job.topic}")
        wire_key = self._wire_key(job.effect_key)
        return await self._renderer.run(lambda: self._request(topic, job.payload, wire_key))

    async def call(
        self,
        wire_key: str,
        body: bytes | None,
        *,
        deadline_seconds: float,
        may_start: Callable[[], bool],
    ) -> Answer:
        """Send one frozen request; as ``outbox.Gateway`` says."""
        if body is None:
            raise ValueError("an e-mail's request has a body; the ledger gave none")
        api_key = self._settings.api_key.get_secret_value()
        came = await self._transport.post(
            self._endpoint.url + self._provider.facts.path,
            self._provider.headers(api_key, wire_key),
            body,
            deadline_seconds=deadline_seconds,
            may_start=may_start,
        )
        if isinstance(came, Broken):
            return _unanswered(came, api_key)
        # An error's words are cut to their length, and of half a key nobody would know what it was.
        said = came.body if came.status < 300 else _masked(came.body, api_key)
        answer = self._provider.classify(came.status, came.headers, said)
        return _without_secret(answer, api_key)

    async def close(self) -> None:
        """Close the connections and let the rendering threads end."""
        self._renderer.close()
        await self._transport.close()

    def _own_policy(self, topic: Topic) -> Policy:
        default = self._default
        unknown = default.repeat_unknown if topic.unknown is None else topic.unknown == "repeat"
        return replace(
            default,
            repeat_unknown=unknown,
            max_attempts=topic.max_attempts or default.max_attempts,
        )

    def _wire_key(self, effect_key: str) -> str:
        namespace = self._settings.key_namespace
        wire_key = f"{namespace}-{effect_key}" if namespace else effect_key
        if len(wire_key) > self._provider.facts.key_characters_max:
            limit = self._provider.facts.key_characters_max
            raise Unrenderable(f"effect key: {self.provider} takes at most {limit} characters")
        return wire_key

    def _request(self, topic: Topic, payload: str, wire_key: str) -> Request:
        message = topic.message(payload)
        body = self._provider.encode(message, self._sender)
        if len(body) > REQUEST_BYTES_MAX:
            raise Unrenderable(f"message: {len(body)} bytes, more than {REQUEST_BYTES_MAX}")
        party = hashlib.sha256(message.to[0].address.encode()).hexdigest()[:16]
        return Request(wire_key, body, party)


def _unanswered(broken: Broken, api_key: str) -> Answer:
    meaning = Meaning.FAILED if broken.may_have_left else Meaning.UNREACHED
    # The key goes before anything is cut, as above.
    answer = _without_secret(Answer(meaning, broken.reason, detail=broken.detail), api_key)
    return replace(answer, detail=presentable(answer.detail or "", _DETAIL_CHARACTERS) or None)


def _masked(body: bytes, api_key: str) -> bytes:
    return re.sub(re.escape(api_key.encode()), b"***", body, flags=re.IGNORECASE)


def _without_secret(answer: Answer, api_key: str) -> Answer:
    """A server that echoes the API key must not bring it into the ledger."""
    key = re.compile(re.escape(api_key), re.IGNORECASE)
    texts = (answer.reason, answer.detail, answer.message_id)
    if not any(text and key.search(text) for text in texts):
        return answer
    message_id = answer.message_id
    if message_id is not None and len(api_key) >= _KEY_CHARACTERS and key.search(message_id):
        message_id = None
    return replace(
        answer,
        reason=key.sub("***", answer.reason),
        detail=answer.detail and key.sub("***", answer.detail),
        message_id=message_id,
    )
