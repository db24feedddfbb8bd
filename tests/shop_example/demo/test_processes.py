"""The demo's processes: their settings, and what is said when one of them fails."""

from __future__ import annotations

from pathlib import Path
from threading import Event

import pytest

from outbox.settings import OutboxSettings
from shop_example.demo import DemoFailed
from shop_example.demo.leash import Leash
from shop_example.demo.processes import (
    FAULTS,
    QUICK,
    Consumer,
    Place,
    clean_environment,
    consumer_settings,
)
from shop_example.mail_service.fault_plan import checked_rates


def test_nobodys_own_settings_reach_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key or a database of the person who runs it stays out of it."""
    monkeypatch.setenv("EMAIL_API_KEY", "re_real")
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://production/shop")
    environment = clean_environment()
    assert not {name for name in environment if name.startswith(("EMAIL_", "OUTBOX_"))}


@pytest.mark.parametrize("provider_keys", [True, False])
def test_the_consumers_settings_make_sense_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provider_keys: bool
) -> None:
    """Lease, heartbeat and deadline, short as they are; holding where there are no keys."""
    monkeypatch.chdir(tmp_path)
    settings = consumer_settings("postgresql://db/x", "http://x", provider_keys=provider_keys)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    outbox = OutboxSettings.load()
    room = outbox.lease_seconds - outbox.heartbeat_seconds
    assert float(QUICK["EMAIL_TIMEOUT_SECONDS"]) < room
    assert (settings.get("EMAIL_UNKNOWN") == "hold") is not provider_keys


def test_the_faults_are_ones_that_the_mail_service_knows() -> None:
    """About a quarter of all requests meets one."""
    assert 0.2 < sum(checked_rates(FAULTS).values()) < 0.3


def test_a_consumer_that_ends_by_itself_is_said_with_its_last_words(tmp_path: Path) -> None:
    """And where its log is."""
    with Leash() as leash:
        consumer = Consumer("consumer-1", Place(tmp_path, leash, clean_environment()))
        consumer.start()
        with pytest.raises(DemoFailed) as caught:
            start_and_stop(consumer)
    assert "EMAIL_" in str(caught.value)
    assert str(tmp_path / "consumer-1.log") in str(caught.value)


def start_and_stop(consumer: Consumer) -> None:
    """Its complaint is its first line, so it may seem to be up."""
    consumer.wait_until_up(Event())
    consumer.stop()
