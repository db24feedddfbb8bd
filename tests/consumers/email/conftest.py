"""What tests of the e-mail consumer ask for: a provider made of bytes, settings, a gateway."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop

from consumers.email.gateway import EmailGateway
from consumers.email.message import Message
from consumers.email.renderer import Renderer
from consumers.email.settings import EmailSettings
from consumers.email.topics import Emails
from consumers.email.transport import Transport
from outbox.backoff import Backoff
from outbox.outcome import Answer
from tests.consumers.email.servers import Answers, Server

API_KEY = "re_AbCdEfGh_0123456789"

Serve = Callable[..., Awaitable[Server]]
Call = Callable[..., Awaitable[Answer]]
MakeGateway = Callable[..., EmailGateway]


#: What touches the network runs on both event loops on which a consumer may run.
_ON_BOTH_LOOPS = {"test_line", "test_transport"}


def pytest_asyncio_loop_factories(
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Part of pytest-asyncio."""
    loops = {"asyncio": asyncio.new_event_loop}
    return loops | {"uvloop": uvloop.new_event_loop} if item.path.stem in _ON_BOTH_LOOPS else loops


@pytest.fixture(autouse=True)
def _no_settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts a server with the given behaviour."""
    servers: list[Server] = []

    async def start(answers: Answers, *, reads_requests: bool = True) -> Server:
        servers.append(await Server(answers, reads_requests).start())
        return servers[-1]

    yield start
    for server in servers:
        await server.stop()


def settings(**given: object) -> EmailSettings:
    """Settings that are complete but for what is given."""
    complete: dict[str, object] = {
        "provider_name": "resend",
        "api_url": "http://127.0.0.1:9",
        "api_key": API_KEY,
        "sender_text": "Shop <orders@shop.example>",
        "timeout_seconds": 5.0,
    }
    return EmailSettings.load(**(complete | given))


def emails() -> Emails:
    """An application with one topic."""
    application = Emails()

    @application.topic("email.order_confirmation")
    def order_confirmation(order: dict[str, object]) -> Message:
        return Message(to=str(order["email"]), subject=f"Order {order['id']}", text="Thank you.")

    return application


@pytest.fixture
async def make_gateway() -> AsyncIterator[MakeGateway]:
    """Makes gateways, and closes them in the end."""
    gateways: list[EmailGateway] = []

    def make(
        application: Emails | None = None,
        *,
        transport: Transport | None = None,
        renderer: Renderer | None = None,
        max_attempts: int = 5,
        **given: object,
    ) -> EmailGateway:
        gateway = EmailGateway(
            application or emails(),
            settings(**given),
            max_attempts=max_attempts,
            backoff=Backoff(),
            transport=transport,
            renderer=renderer,
        )
        gateways.append(gateway)
        return gateway

    yield make
    for gateway in gateways:
        await gateway.close()


@pytest.fixture
def call(make_gateway: MakeGateway) -> Call:
    """Makes one call to a URL through the transport that ships."""

    async def make(
        url: str,
        *,
        wire_key: str = "email-order-102",
        body: bytes = b'{"to":["jane@example.com"]}',
        deadline_seconds: float = 5,
        may_start: Callable[[], bool] = lambda: True,
        **given: object,
    ) -> Answer:
        gateway = make_gateway(api_url=url, **given)
        return await gateway.call(
            wire_key, body, deadline_seconds=deadline_seconds, may_start=may_start
        )

    return make


async def two_calls(make_gateway: MakeGateway, url: str) -> list[Answer]:
    """One after the other, through one gateway."""
    gateway = make_gateway(api_url=url)
    return [
        await gateway.call("k", b"{}", deadline_seconds=5, may_start=lambda: True) for _ in range(2)
    ]


@pytest.fixture
def full_backlog() -> Iterator[int]:
    """A port whose connections are neither accepted nor refused."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address = listening.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(address)
        yield address[1]
        for each in waiting:
            each.close()
