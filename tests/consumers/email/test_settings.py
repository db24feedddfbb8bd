"""The settings: their names, what is refused with which line, and how they must fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.email.settings import EmailSettings, check_relations
from outbox.errors import ConfigurationError
from outbox.settings import OutboxSettings
from tests.consumers.email.conftest import settings

KEY = "re_AbCdEfGh_0123456789"
COMPLETE = {
    "EMAIL_PROVIDER": "resend",
    "EMAIL_API_KEY": KEY,
    "EMAIL_FROM": "Shop <orders@shop.example>",
}
EVERYTHING = COMPLETE | {
    "EMAIL_APP": "shop_example.emails:emails",
    "EMAIL_API_URL": "http://127.0.0.1:8025/",
    "EMAIL_ACCOUNT": "shop",
    "EMAIL_TIMEOUT_SECONDS": "12.5",
    "EMAIL_CONCURRENCY": "7",
    "EMAIL_RATE_PER_SECOND": "4.5",
    "EMAIL_KEY_WINDOW_SECONDS": "3600",
    "EMAIL_KEY_NAMESPACE": "prod",
    "EMAIL_UNKNOWN": "repeat",
}


def load(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> EmailSettings:
    """Read the settings in an environment of these variables."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return EmailSettings.load()


def test_three_settings_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provider, key and sender; the rest has defaults."""
    found = load(monkeypatch, COMPLETE)
    assert found.provider.facts.name == "resend"
    assert found.endpoint.url == "https://api.resend.com"
    assert str(found.sender) == "Shop <orders@shop.example>"
    assert (found.timeout_seconds, found.concurrency, found.unknown) == (30, 50, "hold")
    assert (found.app, found.rate_per_second, found.key_namespace) == (None, None, None)
    assert found.memory_seconds == 23 * 3600


def test_every_setting_is_read_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names are an interface."""
    found = load(monkeypatch, EVERYTHING)
    assert found.app == "shop_example.emails:emails"
    assert found.endpoint.url == "http://127.0.0.1:8025"
    assert found.account == "shop"
    assert (found.timeout_seconds, found.concurrency) == (12.5, 7)
    assert (found.rate_per_second, found.key_namespace) == (4.5, "prod")
    assert found.memory_seconds == 3450
    assert found.unknown == "repeat"


def test_settings_are_read_from_a_file_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A .env in the current folder, which the environment overrides."""
    lines = [f"{name}={value}" for name, value in EVERYTHING.items()]
    (tmp_path / ".env").write_text("\n".join([*lines, "OUTBOX_NOTIFY=0", "OTHER=1"]))
    found = load(monkeypatch, {"EMAIL_CONCURRENCY": "9"})
    assert (found.provider_name, found.key_namespace, found.concurrency) == ("resend", "prod", 9)
    assert found.sender.name == "Shop"


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As compose files pass them."""
    found = load(monkeypatch, COMPLETE | {"EMAIL_API_URL": "", "EMAIL_KEY_WINDOW_SECONDS": ""})
    assert found.endpoint.url == "https://api.resend.com"
    assert found.memory_seconds == 23 * 3600


def test_a_window_of_zero_means_that_no_keys_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory at all."""
    assert load(monkeypatch, COMPLETE | {"EMAIL_KEY_WINDOW_SECONDS": "0"}).memory_seconds is None


def test_what_is_missing_is_named_with_a_remedy() -> None:
    """A line each, and nothing else."""
    with pytest.raises(ConfigurationError) as caught:
        EmailSettings.load()
    assert str(caught.value).splitlines() == [
        "EMAIL_PROVIDER: is not set; choose one of: resend",
        "EMAIL_API_KEY: is not set; give the provider's API key",
        "EMAIL_FROM: is not set; give the sender, such as Shop <orders@shop.example>",
    ]


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("EMAIL_PROVIDER", "sendgird", "is no known provider; choose one of: resend"),
        ("EMAIL_API_KEY", f"{KEY}\n", "has a space or line break at an end; remove it"),
        ("EMAIL_API_KEY", f" {KEY}", "has a space or line break at an end; remove it"),
        ("EMAIL_API_KEY", f"{KEY}ä", "must be printable ASCII"),
        ("EMAIL_API_KEY", f"{KEY} {KEY}", "must be printable ASCII"),
        ("EMAIL_FROM", "orders", "must be one address"),
        ("EMAIL_FROM", "a@b.example, c@d.example", "must be one address"),
        ("EMAIL_API_URL", "http://api.example.com", "plain http would send the API key"),
        ("EMAIL_API_URL", f"https://x:{KEY}@api.example.com", "must hold no user"),
        ("EMAIL_ACCOUNT", "a/b", "must be 1 to 64 letters"),
        ("EMAIL_TIMEOUT_SECONDS", "0", "greater than 0"),
        ("EMAIL_TIMEOUT_SECONDS", "-1", "greater than 0"),
        ("EMAIL_TIMEOUT_SECONDS", "soon", "valid number"),
        ("EMAIL_TIMEOUT_SECONDS", "nan", "less than or equal|finite number"),
        ("EMAIL_TIMEOUT_SECONDS", "inf", "less than or equal|finite number"),
        ("EMAIL_CONCURRENCY", "0", "greater than or equal to 1"),
        ("EMAIL_CONCURRENCY", "1.5", "valid integer"),
        ("EMAIL_RATE_PER_SECOND", "0", "greater than 0"),
        ("EMAIL_KEY_WINDOW_SECONDS", "-1", "greater than or equal to 0"),
        ("EMAIL_KEY_NAMESPACE", "prod-eu", "must be 1 to 32 letters or digits"),
        ("EMAIL_KEY_NAMESPACE", "x" * 33, "must be 1 to 32 letters or digits"),
        ("EMAIL_UNKNOWN", "maybe", "'hold' or 'repeat'"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, line: str
) -> None:
    """For a person at a terminal: no dump, no value of the key."""
    with pytest.raises(ConfigurationError, match=rf"^{name}: .*({line})") as caught:
        load(monkeypatch, COMPLETE | {name: value})
    assert len(str(caught.value).splitlines()) == 1
    assert KEY not in str(caught.value)


def test_a_settings_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    """Instead of a traceback."""
    (tmp_path / ".env").write_bytes(b"EMAIL_APP=\xff\xfe\n")
    with pytest.raises(ConfigurationError, match=r"^\.env: "):
        EmailSettings.load()


def test_the_key_is_not_printed_with_the_settings() -> None:
    """A log line of the settings is harmless."""
    found = settings()
    assert found.api_key.get_secret_value() not in f"{found!r} {found}"


# -- relations ------------------------------------------------------------------------------------


def outbox(**given: float) -> OutboxSettings:
    """The queue's settings."""
    return OutboxSettings.load(**given)


@pytest.mark.parametrize(
    ("timeout_seconds", "fits"), [(30.0, True), (44.9, True), (45.0, False), (60.0, False)]
)
def test_a_call_must_end_within_the_lease(timeout_seconds: float, *, fits: bool) -> None:
    """With a heartbeat to spare; the message names the settings."""
    email = settings(timeout_seconds=timeout_seconds)
    if fits:
        assert check_relations(email, outbox(), 5) == []
        return
    with pytest.raises(ConfigurationError) as caught:
        check_relations(email, outbox(), 5)
    assert "EMAIL_TIMEOUT_SECONDS=" in str(caught.value)
    assert "OUTBOX_LEASE_SECONDS=60" in str(caught.value)
    assert "OUTBOX_HEARTBEAT_SECONDS=15" in str(caught.value)


@pytest.mark.parametrize(("window", "fits"), [(0, True), (96, True), (93, False), (1, False)])
def test_a_crash_must_be_repairable_within_the_providers_memory(
    window: float, *, fits: bool
) -> None:
    """Lease and deadline together are what a repeat needs."""
    email = settings(timeout_seconds=30.0, key_window_seconds=window)
    quick = outbox(backoff_seconds=1.0, backoff_max_seconds=1.0)
    if fits:
        assert check_relations(email, quick, 5) == []
        return
    with pytest.raises(ConfigurationError) as caught:
        check_relations(email, quick, 5)
    for name in ("OUTBOX_LEASE_SECONDS=60", "EMAIL_TIMEOUT_SECONDS=30", "EMAIL_KEY_WINDOW_SECONDS"):
        assert name in str(caught.value)


def test_a_retry_horizon_beyond_the_memory_is_only_warned_of() -> None:
    """The ledger holds what is still open then."""
    email = settings(timeout_seconds=30.0, key_window_seconds=120)
    [warning] = check_relations(email, outbox(), 5)
    assert "150 s" in warning
    assert "115 s" in warning
    assert check_relations(email, outbox(), 4) == []


@pytest.mark.parametrize("max_attempts", [1, 100, 1_000_000])
def test_any_number_of_attempts_is_reckoned_with_at_once(max_attempts: int) -> None:
    """Without overflow and without counting for long."""
    email = settings(timeout_seconds=30.0)
    assert len(check_relations(email, outbox(), max_attempts)) == (max_attempts > 200)
    assert len(check_relations(email, outbox(), 1_000)) == 1
