"""The twelve naive lines: a stable key, and no claim, lease, fence or ledger.

They pass a storm of kills against a provider that replays keys for ever; the tests show where they
don't. The lines are those of ``send_all``; the rest puts names to the points at which they can die.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import httpx
import psycopg

Arrive = Callable[[str], None]


def send_all(database: psycopg.Connection, provider: httpx.Client) -> None:
    """What many shops run."""
    unsent = database.execute("SELECT id, email FROM orders WHERE NOT sent ORDER BY id").fetchall()
    for id_, email in unsent:
        mail = {
            "from": "shop@example.com",
            "to": email,
            "subject": f"Your order {id_}{os.environ.get('FAULTS_TEMPLATE_DRIFT', '')}",
            "text": "Thank you!",
        }
        key = {"Idempotency-Key": f"email-order-{id_}"}
        provider.post("/emails", json=mail, headers=key).raise_for_status()
        database.execute("UPDATE orders SET sent = true WHERE id = %s", [id_])


def run(arrive: Arrive) -> int:
    """Send what is unsent once, telling ``arrive`` each point; the exit code."""
    _wrap(psycopg.Connection, "execute", lambda query: query.split()[0].lower(), arrive)
    _wrap(httpx.Client, "post", lambda _: "call", arrive)
    url, headers = os.environ["EMAIL_API_URL"], {"Authorization": "Bearer naive"}
    with (
        psycopg.connect(os.environ["OUTBOX_DATABASE_URL"], autocommit=True) as database,
        httpx.Client(base_url=url, headers=headers, trust_env=False) as provider,
    ):
        send_all(database, provider)
    return 0


def _wrap(owner: type, method: str, name: Callable[[Any], str], arrive: Arrive) -> None:
    original = getattr(owner, method)

    @wraps(original)
    def wrapped(self: object, first: object, *arguments: object, **named: object) -> object:
        arrive(f"{name(first)}:before")
        result = original(self, first, *arguments, **named)
        arrive(f"{name(first)}:after")
        return result

    setattr(owner, method, wrapped)
