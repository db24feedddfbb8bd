"""The OUTBOX_* settings: read once from the environment or ``.env``, relations checked at start."""

from __future__ import annotations

from typing import Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from outbox.backoff import Backoff
from outbox.errors import ConfigurationError


class OutboxSettings(BaseSettings):
    """Settings of the queue; every time is in seconds."""

    model_config = SettingsConfigDict(
        env_prefix="OUTBOX_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
    )

    database_url: str | None = None
    lease_seconds: float = Field(60.0, gt=0, le=86_400)
    heartbeat_seconds: float = Field(15.0, gt=0, le=86_400)
    poll_seconds: float = Field(1.0, gt=0, le=3_600)
    max_attempts: int = Field(5, ge=1, le=1_000_000)
    backoff_seconds: float = Field(10.0, gt=0, le=86_400)
    backoff_max_seconds: float = Field(600.0, gt=0, le=604_800)
    notify: bool = True

    @model_validator(mode="after")
    def _relations(self) -> Self:
        if self.heartbeat_seconds > self.lease_seconds / 3:
            raise ValueError(
                f"OUTBOX_HEARTBEAT_SECONDS={self.heartbeat_seconds:g} is too long for "
                f"OUTBOX_LEASE_SECONDS={self.lease_seconds:g}: a lease must survive two missed "
                "heartbeats; make the heartbeat at most a third of the lease"
            )
        if self.backoff_max_seconds < self.backoff_seconds:
            raise ValueError(
                f"OUTBOX_BACKOFF_MAX_SECONDS={self.backoff_max_seconds:g} is below "
                f"OUTBOX_BACKOFF_SECONDS={self.backoff_seconds:g}"
            )
        return self

    @classmethod
    def load(cls, **given: object) -> Self:
        """Read the settings.

        Raises:
            ConfigurationError: one line for a person per wrong setting, with the variable's name.
        """
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            raise ConfigurationError(explain(error, "OUTBOX_")) from None

    @property
    def backoff(self) -> Backoff:
        """The wait between tries."""
        return Backoff(self.backoff_seconds, self.backoff_max_seconds)


def explain(error: ValidationError, prefix: str) -> str:
    """Return a settings error as lines: variable and remedy, never a value that may be secret."""
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        name = "".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{prefix}{name.upper()}: {message}" if name else message)
    return "\n".join(lines)
