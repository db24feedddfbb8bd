"""Puts a consumer together from its settings and runs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from consumers.email.application import load_emails
from consumers.email.gateway import EmailGateway
from consumers.email.settings import EmailSettings, check_relations
from consumers.email.topics import Emails
from outbox.connection import host_of
from outbox.consumer import Consumer
from outbox.errors import ConfigurationError
from outbox.settings import OutboxSettings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Run:
    """What the command line asks for; ``None`` where the settings decide."""

    app: str | None = None
    concurrency: int | None = None
    drain: bool = False
    timeout_seconds: float | None = None


def run(wish: Run) -> int:
    """Run a consumer until it is stopped, or has drained, and return the exit code.

    Raises:
        ConfigurationError: settings or application are wrong.
        OutboxError: the database has no schema, or the embedded one can't start.
    """
    email, outbox = _settings(wish)
    app = email.app
    if app is None:
        raise ConfigurationError("EMAIL_APP: is not set; set it, or give --app MODULE:NAME")
    emails = load_emails(app)
    for warning in check_relations(email, outbox, _most_attempts(emails, outbox)):
        _log.warning("%s", warning)
    database_url = _database_url(email, outbox)
    _log.info("%s", start_line(app, emails, email, database_url))
    if email.key_namespace is None and not email.endpoint.is_loopback:
        _log.warning(
            "EMAIL_KEY_NAMESPACE is not set: another environment that uses this provider account "
            "would share its keys; set one per environment, such as prod"
        )
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_consume(emails, email, outbox, database_url, wish))


def start_line(app: str, emails: Emails, email: EmailSettings, database_url: str) -> str:
    """Return the line that says what is served, and between which hosts."""
    return (
        f"{app} serves {', '.join(sorted(emails.topics))}; database {host_of(database_url)}; "
        f"provider {email.provider_name} at {email.endpoint.host}; "
        f"namespace {email.key_namespace or 'none'}"
    )


def _settings(wish: Run) -> tuple[EmailSettings, OutboxSettings]:
    """Read both kinds of settings; when both have faults, say so of both at once."""
    given = {"app": wish.app, "concurrency": wish.concurrency}
    overrides = {name: value for name, value in given.items() if value is not None}
    try:
        email = EmailSettings.load(**overrides)
    except ConfigurationError as error:
        try:
            OutboxSettings.load()
        except ConfigurationError as other:
            raise ConfigurationError(f"{error}\n{other}") from None
        raise
    return email, OutboxSettings.load()


def _most_attempts(emails: Emails, outbox: OutboxSettings) -> int:
    return max(topic.max_attempts or outbox.max_attempts for topic in emails.topics.values())


def _database_url(email: EmailSettings, outbox: OutboxSettings) -> str:
    if outbox.database_url:
        return outbox.database_url
    if not email.endpoint.is_loopback:
        raise ConfigurationError(
            f"OUTBOX_DATABASE_URL: is not set, and the provider at {email.endpoint.host} is a real "
            "one; the embedded database is for trying things out on one machine, so name yours"
        )
    from outbox import embedded

    return embedded.start()


async def _consume(
    emails: Emails, email: EmailSettings, outbox: OutboxSettings, database_url: str, wish: Run
) -> int:
    gateway = EmailGateway(emails, email, max_attempts=outbox.max_attempts, backoff=outbox.backoff)
    consumer = Consumer(
        database_url,
        gateway,
        outbox,
        concurrency=email.concurrency,
        rate_per_second=email.rate_per_second,
    )
    try:
        return await consumer.run(drain=wish.drain, timeout_seconds=wish.timeout_seconds)
    finally:
        await gateway.close()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Prefer uvloop where it is installed; nothing depends on it."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
