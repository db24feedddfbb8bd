"""The whole way, with the commands that people type: from an order to its one e-mail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shop_example.mail_service.events import Decided, Received
from shop_example.mail_service.record import Tally, read_record
from tests.shop_example.mail_process import mail_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.shop_example.mail_process import MailProcess

ROOT = Path(__file__).parent.parent
OUTBOX = ["-c", "import sys; from outbox.commands import main; sys.exit(main())"]
SHOP = ["-m", "shop_example"]
CONSUMER = ["-m", "consumers.email.command"]
TIMEOUT_SECONDS = 60


@pytest.fixture
def service(tmp_path: Path) -> Iterator[MailProcess]:
    """The provider, which replays keys."""
    with mail_process(tmp_path / "record.jsonl") as service:
        yield service


@pytest.fixture
def settings(empty_database_url: str, service: MailProcess) -> Mapping[str, str]:
    """The settings of a person who tries it out: a database, a provider, and nothing else."""
    return {
        "OUTBOX_DATABASE_URL": empty_database_url,
        "EMAIL_APP": "shop_example.emails:emails",
        "EMAIL_PROVIDER": "resend",
        "EMAIL_API_URL": service.url,
        "EMAIL_API_KEY": "re_local",
        "EMAIL_FROM": "Shop <shop@example.com>",
    }


def test_an_order_is_placed_and_its_email_goes_out_once(
    settings: Mapping[str, str], service: MailProcess
) -> None:
    """From an empty database to the question who got which e-mail, and when."""
    _run(settings, *OUTBOX, "migrate")
    (order,) = _json_lines(_run(settings, *SHOP, "order", "--json"))
    key = order["effect_key"]
    assert key == f"email-order-{order['order_id']}"
    assert _status(settings)["ready"] == 1

    _run(settings, *CONSUMER, "run", "--drain")
    (received,) = [event for event in read_record(service.record) if isinstance(event, Received)]
    (decided,) = [event for event in read_record(service.record) if isinstance(event, Decided)]
    assert (received.method, received.path, received.key) == ("POST", "/emails", key)
    assert decided.accepted
    _assert_it_is_the_orders_mail(settings, order, decided.mail)

    (effect,) = _json_lines(_run(settings, *OUTBOX, "effects", "show", key, "--json"))
    assert effect["effect_key"] == key
    assert effect["state"] == "delivered"
    assert effect["provider"] == "resend"
    assert effect["provider_message_id"] == decided.email_id
    assert effect["requests_sent"] == 1
    assert effect["first_attempt_at"] <= effect["settled_at"]

    _run(settings, *CONSUMER, "run", "--drain")
    assert Tally.of(read_record(service.record)).requests == 1
    status = _status(settings)
    assert {status[name] for name in ("ready", "running", "held", "dead", "unserved")} == {0}


def test_a_hundred_orders_make_a_hundred_requests_each_with_its_own_key(
    settings: Mapping[str, str], service: MailProcess
) -> None:
    """``order --count 100``, a drain: 100 requests; a second drain: none."""
    _run(settings, *OUTBOX, "migrate")
    orders = _json_lines(_run(settings, *SHOP, "order", "--count", "100", "--json"))
    for _ in range(2):
        _run(settings, *CONSUMER, "run", "--app", "shop_example.emails:emails", "--drain")
    tally = Tally.of(read_record(service.record))
    assert (tally.requests, tally.accepted, tally.duplicates, tally.surplus) == (100, 100, 0, 0)
    assert tally.by_key.keys() == {order["effect_key"] for order in orders}
    delivered = _run(
        settings, *OUTBOX, "effects", "list", "--state", "delivered", "--limit", "1000", "--json"
    )
    assert len(_json_lines(delivered)) == 100


def test_nothing_of_an_order_that_is_rolled_back_is_ever_seen(
    settings: Mapping[str, str], service: MailProcess
) -> None:
    """The shop fails after the job was written: no order, no job, no request."""
    from sqlalchemy.orm import Session

    from outbox import Outbox
    from shop_example.database import engine_of
    from shop_example.orders import place_order
    from shop_example.tables import create_tables

    _run(settings, *OUTBOX, "migrate")
    engine = engine_of(settings["OUTBOX_DATABASE_URL"])
    create_tables(engine)
    with Session(engine) as session:
        place_order(session, Outbox(), customer_id=1, quantities={1: 1})
        session.rollback()
    engine.dispose()
    _run(settings, *CONSUMER, "run", "--drain")
    assert Tally.of(read_record(service.record)).requests == 0
    assert _status(settings)["ready"] == 0


def _assert_it_is_the_orders_mail(
    settings: Mapping[str, str], order: Mapping[str, Any], mail: Mapping[str, Any] | None
) -> None:
    assert mail is not None
    with psycopg.connect(settings["OUTBOX_DATABASE_URL"]) as connection:
        row = connection.execute(
            "SELECT email FROM shop.customers JOIN shop.orders ON customers.id = customer_id"
            " WHERE orders.id = %s",
            [order["order_id"]],
        ).fetchone()
    assert row is not None
    assert mail["from"] == settings["EMAIL_FROM"]
    assert row[0] in mail["to"][0]
    assert str(order["order_id"]) in mail["subject"]
    for part in ("text", "html"):
        assert order["total"] in mail[part]


def _status(settings: Mapping[str, str]) -> dict[str, Any]:
    (status,) = _json_lines(_run(settings, *OUTBOX, "status", "--json"))
    return status


def _run(settings: Mapping[str, str], *arguments: str) -> str:
    """Run a command in the checkout, which must succeed; its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
