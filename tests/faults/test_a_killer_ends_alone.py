"""A job that takes its worker along, with real processes that die of it (promise 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from outbox import Outbox
from tests.faults.judge import Order, judge, tallies
from tests.faults.orders import payload
from tests.faults.scenarios import SETTINGS

if TYPE_CHECKING:
    from tests.faults.crew import Crew
    from tests.faults.provider import Provider

JOBS = 8
KILLER = 5
MAX_ATTEMPTS = 2


def test_a_job_that_kills_its_process_ends_after_its_attempts_and_the_others_are_sent(
    hands: Crew, replaying: Provider, database_url: str
) -> None:
    """A supervisor starts the consumer again and again: as often as the cap says, no more."""
    with psycopg.connect(database_url) as connection:
        for number in range(JOBS):
            mail = payload(order_id=number)
            Outbox().enqueue(connection, "email.x", mail, effect_key=f"email-order-{number}")
    settings = {
        **SETTINGS,
        "OUTBOX_DATABASE_URL": database_url,
        "OUTBOX_MAX_ATTEMPTS": str(MAX_ATTEMPTS),
        "EMAIL_API_URL": replaying.url,
        "EMAIL_CONCURRENCY": str(JOBS),
        "FAULTS_TOPICS": "email.x",
        "FAULTS_KILLER": str(KILLER),
    }
    kills = 0
    while (end := hands[0].run(settings)).signal == "SIGKILL":
        kills += 1
        assert kills <= MAX_ATTEMPTS, "it goes on killing"
    assert (end.code, kills) == (0, MAX_ATTEMPTS)

    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT effect_key, state, reason FROM outbox.job_status")
        states = {key: (state, reason) for key, state, reason in rows}
        charged = connection.execute("SELECT attempts FROM outbox.ended_job").fetchall()
    killer = f"email-order-{KILLER}"
    assert states.pop(killer) == ("dead", "max_attempts")
    assert set(states.values()) == {("done", "delivered")}
    assert charged == [(MAX_ATTEMPTS + 1,)], "the claim that found it over its cap is counted, too"
    orders = [Order(key, kills=1) for key in states]
    assert judge(replaying.record, [*orders, Order(killer, told="dead")]) == {}
    assert killer not in tallies(replaying.record)
