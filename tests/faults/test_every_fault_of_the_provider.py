"""Every way in which the mail-service can misbehave, met once by an order each.

Promises 3 and 5 over the whole way, with real processes: a replaying provider accepts each order
once in the end; with one that keeps no keys an order is held where it may have been accepted, and
only there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from outbox import Outbox
from shop_example.mail_service.faults import FAULTS
from tests.faults.judge import Order, judge, tallies
from tests.faults.orders import payload
from tests.faults.scenarios import SETTINGS, WITHOUT_KEYS

if TYPE_CHECKING:
    from tests.faults.crew import Crew
    from tests.faults.provider import Provider

#: These speak of the account: the lane pauses and a drain says no. Their tests are elsewhere.
PAUSING = {"redirect", "401", "403", "403_domain", "404", "429_daily_quota", "429_monthly_quota"}
REFUSALS = {"400", "422"}
#: Somebody else has used the key: a person has to look, whatever the provider keeps.
KEY_TAKEN = {"409_other_payload"}
SURELY_NOT_ACCEPTED = {"429"}
#: A 2xx is an acceptance, with or without an id that can be read.
ACCEPTED_ALL_THE_SAME = {
    "garbage_200", "empty_200", "no_id_200", "truncated_200", "reset_midway_200", "slow_drip",
}  # fmt: skip
TRIED = [name for name in FAULTS if name not in PAUSING]


def test_with_keys_each_order_is_accepted_once_whatever_its_first_request_meets(
    hands: Crew, replaying: Provider, database_url: str
) -> None:
    """Only a refusal ends otherwise, and a key that somebody else has used."""
    states = _send(hands, replaying, database_url)
    expected = dict.fromkeys(TRIED, "done")
    expected |= dict.fromkeys(REFUSALS, "dead") | dict.fromkeys(KEY_TAKEN, "held")
    assert states == expected
    _assert_counts(replaying, states)


def test_without_keys_an_order_is_held_where_it_may_have_been_accepted_and_only_there(
    hands: Crew, forgetful: Provider, database_url: str
) -> None:
    """No answer, or a wrong one, and no key to ask again with: one request, and a person."""
    states = _send(hands, forgetful, database_url, **WITHOUT_KEYS)
    expected = dict.fromkeys(TRIED, "held") | dict.fromkeys(REFUSALS, "dead")
    expected |= dict.fromkeys(ACCEPTED_ALL_THE_SAME | SURELY_NOT_ACCEPTED, "done")
    assert states == expected
    _assert_counts(forgetful, states)


def _send(hands: Crew, provider: Provider, database_url: str, **settings: str) -> dict[str, str]:
    """One order for each fault, and an honest one between two, so that no run of faults pauses."""
    provider.plan([{"key": f"email-{name}", "fault": name} for name in TRIED], late_seconds=2.0)
    with psycopg.connect(database_url) as connection:
        for name in TRIED:
            for key in (f"email-honest-{name}", f"email-{name}"):
                Outbox().enqueue(connection, "email.x", payload(), effect_key=key)
    places = {"OUTBOX_DATABASE_URL": database_url, "EMAIL_API_URL": provider.url}
    end = hands[0].run({**SETTINGS, **settings, **places, "FAULTS_TOPICS": "email.x"})
    assert end.code == 0
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT effect_key, state FROM outbox.job_status").fetchall()
    states = {key.removeprefix("email-"): state for key, state in rows}
    honest = {states.pop(f"honest-{name}") for name in TRIED}
    assert honest == {"done"}
    return states


def _assert_counts(provider: Provider, states: dict[str, str]) -> None:
    told = {name: None if state == "done" else state for name, state in states.items()}
    orders = [Order(f"email-{name}", told=told[name]) for name in TRIED]
    honest = [Order(f"email-honest-{name}") for name in TRIED]
    assert judge(provider.record, [*orders, *honest]) == {}
    seen = tallies(provider.record)
    assert {name: sum(seen[f"email-{name}"].faults.values()) for name in TRIED} == dict.fromkeys(
        TRIED, 1
    )
