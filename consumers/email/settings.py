"""The EMAIL_* settings: read once from the environment or ``.env``, relations checked at start."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from consumers.email.endpoint import Endpoint
from consumers.email.message import Address, InvalidMessage
from consumers.email.provider import Facts, Provider
from consumers.email.providers import PROVIDERS
from outbox.errors import ConfigurationError
from outbox.settings import OutboxSettings

#: Taken off a provider's memory: its clock and ours may differ, and its deletions may be early.
#: An hour of Resend's 24.
MEMORY_MARGIN: Final = 1 / 24

_REMEDIES: Final = {
    "provider": f"is not set; choose one of: {', '.join(PROVIDERS)}",
    "api_key": "is not set; give the provider's API key",
    "from": "is not set; give the sender, such as Shop <orders@shop.example>",
}


def _provider(name: str) -> str:
    if name not in PROVIDERS:
        raise ValueError(f"is no known provider; choose one of: {', '.join(PROVIDERS)}")
    return name


def _api_key(secret: SecretStr) -> SecretStr:
    key = secret.get_secret_value()
    if key != key.strip():
        raise ValueError("has a space or line break at an end; remove it")
    if not re.fullmatch(r"[!-~]+", key):
        raise ValueError("must be printable ASCII without spaces; copy the key again")
    return secret


def _sender(text: str) -> str:
    try:
        Address.parse(text)
    except InvalidMessage:
        raise ValueError("must be one address: orders@shop.example or Shop <...>") from None
    return text


def _account(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name):
        raise ValueError("must be 1 to 64 letters, digits, dots, underscores or hyphens")
    return name


def _namespace(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]{1,32}", name):
        raise ValueError("must be 1 to 32 letters or digits, such as prod or staging2")
    return name


def _api_url(url: str) -> str:
    Endpoint.parse(url)
    return url


class EmailSettings(BaseSettings):
    """Settings of the e-mail consumer; every time is in seconds.

    ``key_window_seconds`` overrides how long the provider is said to keep keys (0: it has none);
    ``rate_per_second`` is per process; ``account`` tells apart accounts on one host.
    """

    model_config = SettingsConfigDict(
        env_prefix="EMAIL_",
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        populate_by_name=True,
    )

    app: str | None = None
    provider_name: Annotated[str, AfterValidator(_provider)] = Field(
        validation_alias="EMAIL_PROVIDER"
    )
    api_url: Annotated[str, AfterValidator(_api_url)] | None = None
    api_key: Annotated[SecretStr, AfterValidator(_api_key)]
    sender_text: Annotated[str, AfterValidator(_sender)] = Field(validation_alias="EMAIL_FROM")
    account: Annotated[str, AfterValidator(_account)] | None = None
    timeout_seconds: float = Field(30.0, gt=0, le=3_600)
    concurrency: int = Field(50, ge=1, le=1_000)
    rate_per_second: float | None = Field(None, gt=0, le=1_000_000)
    key_window_seconds: float | None = Field(None, ge=0, le=366 * 86_400)
    key_namespace: Annotated[str, AfterValidator(_namespace)] | None = None
    unknown: Literal["hold", "repeat"] = "hold"

    @classmethod
    def load(cls, **given: object) -> Self:
        """Read the settings.

        Raises:
            ConfigurationError: a line for a person per wrong setting, with the variable's name.
        """
        try:
            return cls(**given)  # type: ignore[arg-type]
        except ValidationError as error:
            raise ConfigurationError(_explained(error)) from None
        except UnicodeDecodeError:
            raise ConfigurationError(".env: is not UTF-8; save it as such") from None

    @property
    def provider(self) -> Provider:
        """The provider that is spoken to."""
        return PROVIDERS[self.provider_name]

    @property
    def endpoint(self) -> Endpoint:
        """Where its API is."""
        return Endpoint.parse(self.api_url or self.provider.facts.default_url)

    @property
    def sender(self) -> Address:
        """Whom messages come from."""
        return Address.parse(self.sender_text)

    @property
    def memory_seconds(self) -> float | None:
        """How long the provider surely remembers a key; ``None`` when it keeps none."""
        window = _window_seconds(self, self.provider.facts)
        return window * (1 - MEMORY_MARGIN) if window else None


def _window_seconds(settings: EmailSettings, facts: Facts) -> float | None:
    if settings.key_window_seconds is None:
        return facts.memory_seconds
    return settings.key_window_seconds


def check_relations(email: EmailSettings, outbox: OutboxSettings, max_attempts: int) -> list[str]:
    """Return warnings about settings that fit together badly.

    ``max_attempts``: the most that any topic allows.

    Raises:
        ConfigurationError: settings that make no sense together; names both.
    """
    room = outbox.lease_seconds - outbox.heartbeat_seconds
    if email.timeout_seconds >= room:
        raise ConfigurationError(
            f"EMAIL_TIMEOUT_SECONDS={email.timeout_seconds:g} must be below OUTBOX_LEASE_SECONDS="
            f"{outbox.lease_seconds:g} less OUTBOX_HEARTBEAT_SECONDS={outbox.heartbeat_seconds:g}, "
            "or a lease may end during a call; shorten the timeout or lengthen the lease"
        )
    memory = email.memory_seconds
    if memory is None:
        return []
    if outbox.lease_seconds + email.timeout_seconds > memory:
        raise ConfigurationError(
            f"OUTBOX_LEASE_SECONDS={outbox.lease_seconds:g} and EMAIL_TIMEOUT_SECONDS="
            f"{email.timeout_seconds:g} together exceed the {memory:g} s that the provider surely "
            "remembers a key (EMAIL_KEY_WINDOW_SECONDS less 1/24), so no crash could be repaired "
            "by a repeat; shorten them, or set EMAIL_KEY_WINDOW_SECONDS=0 if it keeps no keys"
        )
    return _horizon_warnings(outbox, max_attempts, memory)


def _horizon_warnings(outbox: OutboxSettings, max_attempts: int, memory: float) -> list[str]:
    # Doubling reaches the cap soon: counting further attempts one by one is never needed.
    steps = min(max_attempts - 1, 64)
    wait = outbox.backoff.delay_seconds
    horizon = sum(wait(failures, lambda: 0.0) for failures in range(1, steps + 1))
    horizon += (max_attempts - 1 - steps) * outbox.backoff_max_seconds
    if horizon <= memory:
        return []
    warning = (
        f"OUTBOX_MAX_ATTEMPTS and OUTBOX_BACKOFF_SECONDS let retries go on for {horizon:g} s, but "
        f"the provider surely remembers a key for {memory:g} s; what is still open then is held"
    )
    return [warning]


def _explained(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        name = "".join(str(part) for part in problem["loc"][:1]).upper()
        setting = name if name.startswith("EMAIL_") else f"EMAIL_{name}"
        if problem["type"] == "missing":
            text = _REMEDIES[setting.removeprefix("EMAIL_").lower()]
        else:
            text = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{setting}: {text}")
    return "\n".join(lines)
