"""Every error the library raises on purpose: one root, few types, a remedy in each message."""

from __future__ import annotations


class OutboxError(Exception):
    """Root of all errors raised on purpose; its text is one line for a person."""


class InvalidJob(OutboxError, ValueError):
    """A job was refused before any SQL ran; the caller's transaction is untouched.

    ``field`` is the path of the offending value (``payload.lines[2].price``, ``effect_key``).
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class WrongConnection(OutboxError, TypeError):
    """``enqueue`` was given something that can't put the job into the caller's transaction."""


class ConfigurationError(OutboxError):
    """A setting is missing, malformed, or contradicts another; the text names it and the remedy."""


class SchemaError(OutboxError):
    """The database lacks the outbox schema, or has one that this code can't work with."""


class DatabaseUnavailable(OutboxError):
    """The database can't be reached or dropped the connection; nothing is known to be lost."""


class LeaseLost(OutboxError):
    """A claim no longer holds: its lease ran out or another consumer has claimed the job."""
