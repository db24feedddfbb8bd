"""From settings to an open database, and from errors to a line and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from outbox import schema
from outbox.commands.answer import complain
from outbox.errors import ConfigurationError, InvalidJob, OutboxError
from outbox.operator import Operator, connect, explained
from outbox.settings import OutboxSettings


class WrongUse(OutboxError):
    """The arguments make no sense together; the message names them and the remedy."""


_WRONG_USE = (WrongUse, ConfigurationError, InvalidJob)


@contextmanager
def answering() -> Iterator[None]:
    """Let an error end the command with its line: exit code 2 for wrong use or settings, else 1."""
    try:
        yield
    except OutboxError as error:
        complain(str(error))
        raise typer.Exit(2 if isinstance(error, _WRONG_USE) else 1) from None


def database_url() -> str:
    """Return the settings' database, or start the embedded one and return that.

    Raises:
        ConfigurationError: a setting is wrong, or there is no embedded PostgreSQL here.
        DatabaseUnavailable: the embedded PostgreSQL does not start.
    """
    settings = OutboxSettings.load()
    if settings.database_url is not None:
        return settings.database_url
    from outbox import embedded

    return embedded.start()


@contextmanager
def operator() -> Iterator[Operator]:
    """An operator at a database whose schema is the one that this code works with."""
    with answering(), connect(database_url()) as found:
        with explained():
            schema.check(found.connection)
        yield found
